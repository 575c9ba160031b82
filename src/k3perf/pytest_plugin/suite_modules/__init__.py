"""The tests of every suite. The plugin collects those that a suite lacks."""
