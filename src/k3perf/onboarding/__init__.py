"""A team's deployment as a suite: read it, write the files that a suite needs."""
