"""`python -m stitchcore.cli`, as `stitch`."""

from stitchcore.cli.main import main

if __name__ == "__main__":
    main()
