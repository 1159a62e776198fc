"""The commands of the `winnow` program, one file each, and what they share."""
