#!/usr/bin/env python3
"""Runs the quick starts of README.md literally, as a new user does: in order, in an empty HOME,
with no variable of Cairn's or of a desktop session.

A quick start is a block that begins with ```sh and a name that begins with "quickstart". A comment
tells what a command promises: `prints "WORDS"` (on stdout or stderr) and `exits N` (otherwise 0).
Where the system allows it, each block gets /tmp, /run and process numbers of its own, as in a fresh
container; elsewhere it gets an XDG_RUNTIME_DIR of its own. So it never meets what an earlier run
left in /tmp/cairn-UID. In the end the `kill` command that `cairn run` printed ends the agents, and
nothing may be left.
"""
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

from harness import PATIENCE, PEER, ROOT, build, say, text_of

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
TORCH = os.path.join(ROOT, "build", "venv", "bin")
NAMESPACES = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]

# Asks for the status once more without any variable but the block's XDG_RUNTIME_DIR, if it has one;
# ends what the commands said they started; and lists which processes of this HOME are left.
LAST_WORDS = r"""
runtime=(${XDG_RUNTIME_DIR:+"XDG_RUNTIME_DIR=$XDG_RUNTIME_DIR"})
env -i "${runtime[@]}" "$(command -v cairn)" status >"$OUT/bare" 2>&1
kill $(sed -n 's/.*`kill \([0-9 ]*\)` ends it.*/\1/p' "$OUT"/*.text) 2>>"$OUT/kill"
for i in $(seq 300); do
    left=
    for process in /proc/[0-9]*; do
        number=${process#/proc/}
        [ "$number" = $$ ] && continue
        tr '\0' '\n' <"$process/environ" 2>/dev/null | grep -qxF "HOME=$HOME" || continue
        name=$(tr '\0' ' ' <"$process/cmdline" 2>/dev/null) && [ -n "$name" ] || continue
        left="$left$number $name
"
    done
    [ -z "$left" ] && break
    sleep 0.1
done
printf %s "$left" >"$OUT/left"
"""


def quick_starts():
    """{name: [command line]} of README.md."""
    text = text_of(os.path.join(ROOT, "README.md"))
    blocks = re.findall(r"^```sh (quickstart[a-z-]*)\n(.*?)^```$", text, re.M | re.S)
    return {name: [line for line in body.splitlines() if line.strip()] for name, body in blocks}


def promises(line):
    """(the words that a command's comment says it prints, the exit code)"""
    comment = line.partition(" # ")[2]
    code = re.search(r"\bexits (\d+)", comment)
    return re.findall(r'prints "([^"]+)"', comment), int(code[1]) if code else 0


def isolation():
    """The command before a script that gives it /tmp, /run and processes of its own; empty where
    the system does not allow that."""
    if not shutil.which("unshare"):
        return []
    prefix = NAMESPACES if os.geteuid() == 0 else [*NAMESPACES, "--user", "--map-root-user"]
    tried = subprocess.run([*prefix, "sh", "-c", "mount -t tmpfs none /run"], capture_output=True)
    return prefix if tried.returncode == 0 else []


class QuickStart(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="cairn-quick-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.out = os.path.join(self.folder, "out")
        self.home = os.path.join(self.folder, "home")
        os.mkdir(self.out)
        os.mkdir(self.home)

    def script(self, lines, isolated):
        """Each command's output in a file of its own, and its exit code in another."""
        text = []
        if isolated:
            # where the clone and the test's files can be reached while /run and /tmp are covered
            aside = next(a for a in ("/mnt", "/srv") if os.path.commonpath([ROOT, a]) != a)
            text += ["set -e", f"mount -t tmpfs none {aside}"]
            for place in ("/run", "/tmp"):
                inside = [
                    (shlex.quote(folder), f"{aside}/{number}")
                    for number, folder in enumerate((ROOT, self.folder))
                    if os.path.commonpath([folder, place]) == place
                ]
                for folder, keep in inside:
                    text += [f"mkdir -p {keep}", f"mount --bind {folder} {keep}"]
                text.append(f"mount -t tmpfs none {place}")
                for folder, keep in inside:
                    text += [f"mkdir -p {folder}", f"mount --bind {keep} {folder}"]
            text.append("set +e")
        text.append(f"cd {shlex.quote(ROOT)}")
        for number, line in enumerate(lines):
            text += [
                "{",
                line,
                f'}} >"$OUT/{number}.text" 2>&1 </dev/null',
                f'echo $? >"$OUT/{number}.code"',
            ]
        return "\n".join([*text, LAST_WORDS])

    def follow(self, lines, path):
        """Runs the lines and returns what each of them printed."""
        prefix = isolation()
        environment = {"HOME": self.home, "PATH": path, "OUT": self.out, "LANG": "C.UTF-8"}
        if not prefix:
            environment["XDG_RUNTIME_DIR"] = os.path.join(self.folder, "runtime")
            os.mkdir(environment["XDG_RUNTIME_DIR"], 0o700)
            busy = subprocess.run(
                [os.path.join(ROOT, "cairn"), "status"], env=environment, capture_output=True
            )
            if busy.returncode != PEER:
                self.skipTest("an agent of this user runs, and there are no namespaces here")
        done = subprocess.run(
            [*prefix, "bash", "-c", self.script(lines, bool(prefix))],
            env=environment,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=200 * PATIENCE,
        )
        printed = []
        for number, line in enumerate(lines):
            words, code = promises(line)
            text = text_of(os.path.join(self.out, f"{number}.text"))
            said = f"{line}\n{text}{done.stdout}"
            self.assertEqual(text_of(os.path.join(self.out, f"{number}.code")), f"{code}\n", said)
            for word in words:
                self.assertIn(word, text, said)
            printed.append(text)
        self.assertIn("job default", text_of(os.path.join(self.out, "bare")))
        self.assertEqual(text_of(os.path.join(self.out, "kill")), "")
        self.assertEqual(text_of(os.path.join(self.out, "left")), "")
        say(f"{len(lines)} commands, {'' if prefix else 'not '}in namespaces")
        return printed

    def test_basic(self):
        lines = quick_starts()["quickstart"]
        self.assertEqual(lines[0].split("#")[0].strip(), "make")
        printed = self.follow(lines, PATH)
        steps = [
            int(found)
            for text in printed
            for found in re.findall(r"resumes from epoch 1 step (\d+)", text)
        ]
        self.assertEqual(len(steps), 1)
        self.assertGreaterEqual(steps[0], 1)
        self.assertIn("job default", next(t for line, t in zip(lines, printed) if "status" in line))

    def test_pytorch(self):
        tried = (
            subprocess.run(
                [os.path.join(TORCH, "python3"), "-c", "import torch"],
                capture_output=True,
                check=False,
            )
            if os.path.exists(os.path.join(TORCH, "python3"))
            else None
        )
        if not tried or tried.returncode:
            self.skipTest("no PyTorch in build/venv (make interop installs it)")
        lines = quick_starts()["quickstart-pytorch"]
        printed = self.follow(lines, f"{ROOT}:{TORCH}:{PATH}")
        self.assertIn("resumed: the state after update 60\n", printed[-1])
        self.assertIn("step 61 of 120", printed[-1])
        # as if it had never stopped: the last snapshot holds the moments, too
        plain = subprocess.run(
            [os.path.join(TORCH, "python3"), "examples/train.py", "--steps", "120"],
            cwd=ROOT,
            env={"HOME": self.home, "PATH": PATH},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        last = [line for line in printed[-1].splitlines() if line.startswith("step 1")]
        self.assertEqual(last, plain.stdout.splitlines()[-len(last) :])

    def test_every_block_is_run(self):
        self.assertEqual(sorted(quick_starts()), ["quickstart", "quickstart-pytorch"])

    def test_every_file_is_there(self):
        for lines in quick_starts().values():
            for path in re.findall(r"\b((?:examples|tools|docs)/[\w./-]+)", "\n".join(lines)):
                self.assertTrue(os.path.exists(os.path.join(ROOT, path)), path)


if __name__ == "__main__":
    build()
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]])
