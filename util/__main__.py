"""The command line, see `util.commands.frame`: `python -m util` lists the commands."""

from util.commands.frame import main

if __name__ == "__main__":
    main()
