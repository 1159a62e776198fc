"""The commands of `winnow heads`, one file each, and what they share."""
