#!/usr/bin/env python3
"""Checks that names of files and functions in docs are names of files and functions.

1. Every path in backticks or in a link of a README or a page of docs/ exists, and so does the
   heading that a link names.
2. The comment at the head of a C file begins with the file's own path.
3. Every name of code in backticks in docs/ARCHITECTURE.md and docs/PROMISES.md occurs in the code.
4. A unit test has the path of its source: tests/unit/<folder>/test_<file>.c, or test_<folder>.c for
   the whole folder. Tests of a behaviour that no single file has are listed in tests/README.md.
5. Every page of docs/ begins with what its reader can do afterwards.

Prints one line per problem; exit status 1 when there are any.
"""
import functools
import glob
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TOP = {name for name in os.listdir(ROOT) if os.path.isdir(os.path.join(ROOT, name))} - {
    "build",
    "lib",
}
SUFFIXES = (".c", ".h", ".py", ".md", ".map", ".sh", ".service", ".yaml")


def tracked(*patterns):
    """The project's files that match, with those not yet committed."""
    command = ["git", "ls-files", "-co", "--exclude-standard", "--", *patterns]
    out = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return sorted(f for f in out.splitlines() if os.path.exists(os.path.join(ROOT, f)))


def expand(word):
    """A word with {a,b} as the words it stands for; `[ch]` and `*` stay for glob."""
    m = re.search(r"\{([^{}]*)\}", word)
    if not m:
        return [word]
    return [
        w for part in m[1].split(",") for w in expand(word[: m.start()] + part + word[m.end() :])
    ]


@functools.cache
def all_paths():
    """The project's files and folders."""
    files = tracked()
    folders = {os.path.dirname(path) for path in files}
    while above := {os.path.dirname(path) for path in folders} - folders:
        folders |= above
    return sorted(folders.union(files) - {""})


def is_below(folder, word):
    """Whether a file or folder at any depth below the folder ends with the word."""
    inside = os.path.relpath(folder, ROOT).removeprefix(".")
    name = re.escape(word.rstrip("/")).replace(r"\*", "[^/]*").replace(r"\[", "[")
    wanted = re.compile(f"(?:.*/)?{name}".replace(r"\]", "]"))
    start = len(inside) + 1 if inside else 0
    return any(
        wanted.fullmatch(path, start)
        for path in all_paths()
        if not inside or path.startswith(inside + "/")
    )


@functools.cache
def exists(page, word):
    """Whether a page's path is there: from the root or the page's folder; a bare name also below
    that folder, in the folder above, or in tests/. Pages of docs/ may use bare names of all files.
    """
    folder = os.path.dirname(os.path.join(ROOT, page))
    places, depths = [os.path.join(ROOT, word), os.path.join(folder, word)], []
    if word.split("/")[0] not in TOP:
        above = os.path.dirname(folder) if folder != ROOT else ROOT
        places.append(os.path.join(above, word))
        depths = [folder, os.path.join(ROOT, "tests")]
    if page.startswith("docs/"):
        depths.append(ROOT)
    return any(map(glob.glob, places)) or any(is_below(depth, word) for depth in depths)


def is_path(word):
    """Whether a word in backticks claims to be a file or folder of the project."""
    if not re.fullmatch(r"[\w./*{},\[\]-]+", word) or word.startswith(("/", "-", ".")):
        return False
    if word.split("/")[0] in TOP and "/" in word:
        return True
    return word.endswith((".c", ".h", ".[ch]"))


def anchors(path):
    """Names of a page's headings in links, as GitHub makes them."""
    with open(path) as f:
        text = re.sub(r"^```.*?^```", "", f.read(), flags=re.M | re.S)
    titles = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def check_pages():
    problems = []
    for page in tracked("*.md"):
        with open(os.path.join(ROOT, page)) as f:
            fenced = False
            for number, line in enumerate(f, 1):
                if line.startswith("```"):
                    fenced = not fenced
                if fenced:
                    continue
                words = [w for quoted in re.findall(r"`([^`]+)`", line) for w in quoted.split()]
                links = [
                    link
                    for link in re.findall(r"\]\(([^)\s]+)\)", line)
                    if not link.startswith("http")
                ]
                for word in words:
                    for path in expand(word.rstrip(",;:")):
                        if is_path(path) and not exists(page, path):
                            problems.append(f"{page}:{number}: `{path}` is no file of this tree")
                for link in links:
                    name, _, heading = link.partition("#")
                    path = os.path.join(ROOT, page)
                    path = os.path.join(os.path.dirname(path), name) if name else path
                    if not os.path.exists(path) or (heading and heading not in anchors(path)):
                        problems.append(f"{page}:{number}: the link to {link} leads nowhere")
    return problems


def check_heads():
    problems = []
    for path in tracked("*.c", "*.h"):
        with open(os.path.join(ROOT, path)) as f:
            head = f.read(400)
        m = re.match(r"/\*\s*(?:\*\s*)?([\w./]+\.[ch])\b", head)
        wanted = path.removeprefix("include/")
        if m and m[1] != wanted:
            problems.append(f"{path}:1: the comment names {m[1]}; write {wanted}")
    return problems


def check_names():
    code = set()
    for path in tracked("*.c", "*.h", "*.py"):
        with open(os.path.join(ROOT, path)) as f:
            code.update(re.findall(r"\w+", f.read()))
    problems = []
    for page in tracked("docs/ARCHITECTURE.md", "docs/PROMISES.md"):
        with open(os.path.join(ROOT, page)) as f:
            for number, line in enumerate(f, 1):
                for name in re.findall(r"`([A-Za-z]\w*_\w+)(?:\(\w*\))?`", line):
                    if name not in code:
                        problems.append(f"{page}:{number}: the code has no `{name}`")
    return problems


def check_openings():
    problems = []
    for page in tracked("docs/*.md"):
        with open(os.path.join(ROOT, page)) as f:
            paragraphs = f.read().split("\n\n")
        if len(paragraphs) < 2 or not paragraphs[1].startswith("After this page you can "):
            problems.append(f'{page}:3: expected "After this page you can ..." below the title')
    return problems


def check_tests():
    with open(os.path.join(ROOT, "tests/README.md")) as f:
        listed = f.read()
    problems = []
    for path in tracked("tests/unit/*.c"):
        folder, name = os.path.split(path[len("tests/unit/") :])
        noun = name[len("test_") : -len(".c")]
        if not os.path.isdir(os.path.join(ROOT, folder)):
            problems.append(
                f"{path}: there is no folder {folder}; move the test to its source's path"
            )
            continue
        places = [f"{folder}/{noun}.c", f"{folder}/{noun}.h", f"include/cairn/{noun}.h"]
        if noun == os.path.basename(folder) or any(os.path.exists(f"{ROOT}/{p}") for p in places):
            continue
        if f"`{path}`" not in listed:
            problems.append(
                f"{path}: {folder} has no {noun}; rename it or list it in tests/README.md"
            )
    return problems


def main():
    problems = check_pages() + check_heads() + check_names() + check_openings() + check_tests()
    for line in problems:
        print(line)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
