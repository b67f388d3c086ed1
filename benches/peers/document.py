"""The document's parts, each between two lines that name it."""


def lines_around(name):
    return f"<!-- begin: {name} -->\n", f"<!-- end: {name} -->\n"


def split(text, document, name):
    """What stands before and after the part."""
    begin, end = lines_around(name)
    before, found, rest = text.partition(begin)
    _, also_found, after = rest.partition(end)
    if not (found and also_found):
        raise SystemExit(f"{document} lacks the lines {begin.strip()} and {end.strip()}: add them, "
                         "or use --print-only")
    return before + begin, end + after


def check(document, names):
    """Fails now rather than after the measurement."""
    with open(document, encoding="utf-8") as file:
        text = file.read()
    for name in names:
        split(text, document, name)


def replace(document, name, part):
    """Leaves all other parts as they are."""
    with open(document, encoding="utf-8") as file:
        before, after = split(file.read(), document, name)
    with open(document, "w", encoding="utf-8") as file:
        file.write(f"{before}\n{part}\n\n{after}")
