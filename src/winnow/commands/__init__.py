"""The commands of the `winnow` program: `options` says what can be typed, and every command's job has a file here."""
