"""What continuous integration asks: select, plan, merge, history, text."""
