"""The streaming client, the load generator and the mock server. A side-effect layer."""
