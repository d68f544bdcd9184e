import click


@click.command()
def doctor() -> None:
    """x"""
