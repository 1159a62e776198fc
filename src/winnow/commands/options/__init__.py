"""The options of every command, with their defaults and help. Nothing here needs torch."""
