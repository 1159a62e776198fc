"""`python -m winnow`: the `winnow` program, where no script of that name is on the path."""

from winnow.cli import program

if __name__ == "__main__":
    program()
