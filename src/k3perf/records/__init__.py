"""Every record that is stored or passed between layers, once."""
