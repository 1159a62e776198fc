"""The options of `winnow heads`, one file for each command."""
