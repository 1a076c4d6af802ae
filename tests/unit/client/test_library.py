#!/usr/bin/env python3
"""tests/unit/client/test_library.py - the library as a product: what it exports, that its headers
compile as C++ too, and that an installed copy can be used and removed.

It works on build/plain, which `make all` has built.
"""
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
BUILD = os.path.join(ROOT, "build", "plain")
HEADERS = os.path.join(ROOT, "include", "cairn")
# Structs without struct_bytes, and why they never grow.
FIXED = {
    "cairn_generation": "a value",
    "cairn_timing_record": "a format in shared memory, with a version in the ring's header",
}

C_PROGRAM = r"""
#include <cairn/client.h>
#include <cairn/timing.h>
#include <stdio.h>
#include <string.h>

int
main(void)
{
    struct cairn_client_options options = {CAIRN_CLIENT_OPTIONS_INIT, .rank = 0, .world = 1};
    struct cairn_client_stats stats = {CAIRN_CLIENT_STATS_INIT};
    struct cairn_client *client = NULL;

    if (cairn_client_open(&options, &client) != CAIRN_OK ||
        cairn_client_stats_read(client, &stats) != CAIRN_OK || stats.attached)
        return 1;
    cairn_client_close(client);
    puts(cairn_library_version());
    return strcmp(cairn_library_version(), CAIRN_LIBRARY_VERSION) != 0;
}
"""

# Old C++ has no designators: there the size is assigned.
CXX_PROGRAM = r"""
#include "cairn/client.h"
#include "cairn/timing.h"

int
use()
{
#if __cplusplus >= 202002L
    struct cairn_client_options options = {CAIRN_CLIENT_OPTIONS_INIT, .rank = 0, .world = 1};
    struct cairn_client_stats stats = {CAIRN_CLIENT_STATS_INIT};
    struct cairn_restored restored = {CAIRN_RESTORED_INIT};
    struct cairn_slice slice = {CAIRN_SLICE_INIT, .name = "w"};
    struct cairn_uncovered uncovered = {CAIRN_UNCOVERED_INIT, .kind = CAIRN_PARAM};
#else
    struct cairn_client_options options = cairn_client_options();
    struct cairn_client_stats stats = cairn_client_stats();
    struct cairn_restored restored = cairn_restored();
    struct cairn_slice slice = cairn_slice();
    struct cairn_uncovered uncovered = cairn_uncovered();

    options.struct_bytes = sizeof options;
    stats.struct_bytes = sizeof stats;
    restored.struct_bytes = sizeof restored;
    slice.struct_bytes = sizeof slice;
    uncovered.struct_bytes = sizeof uncovered;
#endif
    struct cairn_client *client = nullptr;
    cairn_err err = cairn_client_open(&options, &client);

    if (!err)
        err = cairn_client_register(client, &slice, 1);
    if (!err)
        err = cairn_client_report_coverage(client, nullptr, &uncovered, 1);
    if (!err)
        err = cairn_client_restore(client, &restored);
    if (!err)
        err = cairn_client_stats_read(client, &stats);
    cairn_client_close(client);
    return err;
}
"""


def output_of(*command, **options):
    """What a command prints; what it said on standard error is in the failure."""
    done = subprocess.run(command, capture_output=True, text=True, **options)
    if done.returncode != 0:
        raise AssertionError(f"{command}: exit {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def files_below(folder):
    return sorted(
        os.path.relpath(os.path.join(parent, name), folder)
        for parent, folders, names in os.walk(folder)
        for name in names + [each for each in folders if os.path.islink(os.path.join(parent, each))]
    )


class Symbols(unittest.TestCase):
    def test_exported_symbols_are_those_of_the_list(self):
        found = []
        for library in ("libcairn.so", "libnccl-profiler-cairn.so"):
            path = os.path.join(BUILD, library)
            for line in output_of(
                "nm", "-D", "--defined-only", "--with-symbol-versions", path
            ).splitlines():
                if line.split()[1] != "A":  # the version's own
                    found.append(f"{library} {line.split()[-1]}")
        with open(os.path.join(ROOT, "tests/unit/client/exported.txt"), encoding="utf-8") as file:
            self.assertEqual(sorted(found), sorted(file.read().splitlines()))

    def test_exported_functions_are_those_of_the_headers(self):
        declared = set()
        for name in os.listdir(HEADERS):
            with open(os.path.join(HEADERS, name), encoding="utf-8") as file:
                text = re.sub(r"/\*.*?\*/|static inline .*?\n\{", "", file.read(), flags=re.S)
            declared |= set(re.findall(r"\b(cairn_\w+)\(", text))
        with open(os.path.join(ROOT, "tests/unit/client/exported.txt"), encoding="utf-8") as file:
            listed = set(re.findall(r"^libcairn\.so (\w+)@@CAIRN_1(?:\.\d+)?$", file.read(), re.M))
        callbacks = {"cairn_log_fn", "cairn_list_fn"}
        inline = {"cairn_generation_compare"}
        self.assertEqual(listed, declared - callbacks - inline)

    def test_soname_and_links(self):
        dynamic = output_of("readelf", "-d", os.path.join(BUILD, "libcairn.so"))
        self.assertRegex(dynamic, r"SONAME.*\[libcairn\.so\.1\]")
        plugin = output_of("readelf", "-d", os.path.join(BUILD, "libnccl-profiler-cairn.so"))
        self.assertRegex(plugin, r"SONAME.*\[libnccl-profiler-cairn\.so\]")
        gpt = output_of("readelf", "-d", os.path.join(BUILD, "gpt"))
        self.assertRegex(gpt, r"NEEDED.*\[libcairn\.so\.1\]")
        real = os.path.realpath(os.path.join(BUILD, "libcairn.so"))
        for folder in (BUILD, os.path.join(ROOT, "lib")):
            for name in ("libcairn.so", "libcairn.so.1", os.path.basename(real)):
                self.assertEqual(os.path.realpath(os.path.join(folder, name)), real)


class Headers(unittest.TestCase):
    def test_every_struct_begins_with_its_size_or_is_fixed(self):
        structs = {}
        for name in os.listdir(HEADERS):
            with open(os.path.join(HEADERS, name), encoding="utf-8") as file:
                for struct, first in re.findall(r"^struct (\w+) \{\n\s*(.*?;)", file.read(), re.M):
                    structs[struct] = first
        self.assertTrue(FIXED.keys() <= structs.keys())
        growing = {name for name, first in structs.items() if first == "uint32_t struct_bytes;"}
        self.assertEqual(growing, structs.keys() - FIXED.keys())
        self.assertGreaterEqual(len(growing), 5)

    def test_python_mirrors_the_sizes(self):
        names = {"options": "client_options", "stats": "client_stats"}
        kinds = ("options", "slice", "restored", "uncovered", "stats")
        lines = "".join(f'printf("%zu\\n", sizeof(struct cairn_{names.get(k, k)}));' for k in kinds)
        with tempfile.TemporaryDirectory() as folder:
            source, program = os.path.join(folder, "sizes.c"), os.path.join(folder, "sizes")
            with open(source, "w", encoding="utf-8") as file:
                file.write('#include "cairn/client.h"\n#include <stdio.h>\nint main(void) {')
                file.write(lines + "return 0; }")
            output_of("cc", "-I", os.path.join(ROOT, "include"), "-o", program, source)
            in_c = [int(line) for line in output_of(program).split()]
        code = "import ctypes; from cairn import _lib; " + "; ".join(
            f"print(ctypes.sizeof(_lib._{kind.title()}))" for kind in kinds
        )
        python = {**os.environ, "PYTHONPATH": os.path.join(ROOT, "bindings", "python")}
        self.assertEqual(
            in_c, [int(n) for n in output_of(sys.executable, "-c", code, env=python).split()]
        )

    @unittest.skipUnless(shutil.which("g++"), "g++ is not installed")
    def test_headers_compile_as_cxx_alone_and_together(self):
        strict = [
            "-fsyntax-only",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-I",
            os.path.join(ROOT, "include"),
        ]
        for standard in ("c++11", "c++17", "c++20"):
            for name in sorted(os.listdir(HEADERS)):
                header = f'#include "cairn/{name}"\n'
                output_of("g++", f"-std={standard}", *strict, "-x", "c++", "-", input=header)
            # g++ 12 also warns of fields that designators leave out, which C does not
            quiet = ["-Wno-missing-field-initializers"]
            output_of(
                "g++", f"-std={standard}", *strict, *quiet, "-x", "c++", "-", input=CXX_PROGRAM
            )


class Python(unittest.TestCase):
    """The binding beside a library that does not fit."""

    def load(self, source):
        with tempfile.TemporaryDirectory() as folder:
            library = os.path.join(folder, "libother.so")
            output_of("cc", "-shared", "-fPIC", "-x", "c", "-o", library, "-", input=source)
            environment = {
                **os.environ,
                "PYTHONPATH": os.path.join(ROOT, "bindings", "python"),
                "CAIRN_LIBRARY": library,
            }
            code = "from cairn import _lib; _lib.library()"
            done = subprocess.run(
                [sys.executable, "-c", code], env=environment, capture_output=True, text=True
            )
        self.assertNotEqual(done.returncode, 0)
        return done.stderr

    def test_an_older_library_is_named(self):
        said = self.load("int cairn_client_open(void) { return 0; }")
        self.assertIn("libother.so: has no cairn_library_version, so it is older", said)

    def test_a_library_of_another_major_version_is_named(self):
        with open(os.path.join(ROOT, "tests/unit/client/exported.txt"), encoding="utf-8") as file:
            names = re.findall(r"^libcairn\.so (\w+)@@", file.read(), re.M)
        source = 'const char *cairn_library_version(void) { return "2.0.0"; }' + "".join(
            f"int {name}(void) {{ return 0; }}" for name in names if name != "cairn_library_version"
        )
        self.assertIn(
            "libother.so: is version 2.0.0; this package needs libcairn.so.1", self.load(source)
        )


class Install(unittest.TestCase):
    """One installation, in the order in which it is used: make takes seconds to start."""

    PREFIX = "/opt/cairn"
    OTHERS = ["bin/other", "include/cairn/other.h", "lib/cairn/python/other.py", "lib/libother.so"]

    def make(self, target):
        # not the caller's knobs: a make that runs this test has its own
        environment = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL")}
        place = [f"DESTDIR={self.folder}", f"PREFIX={self.PREFIX}"]
        output_of("make", "-s", target, "BUILD=build/plain", *place, cwd=ROOT, env=environment)

    def test_install_use_uninstall(self):
        with tempfile.TemporaryDirectory(prefix="cairn-install-") as self.folder:
            self.place = self.folder + self.PREFIX
            self.make("install")
            self.check_files()
            self.check_program()
            self.check_package()
            self.check_command()
            for name in self.OTHERS:
                with open(os.path.join(self.place, name), "w", encoding="utf-8"):
                    pass
            self.make("uninstall")
            self.assertEqual(files_below(self.place), sorted(self.OTHERS))
            for name in self.OTHERS:
                os.remove(os.path.join(self.place, name))
            os.makedirs(os.path.join(self.place, "bin"), exist_ok=True)
            self.make("uninstall")  # a second time is not an error, and takes the empty folders
            left = {os.path.relpath(parent, self.place) for parent, _, _ in os.walk(self.place)}
            left = {name for name in left if not name.startswith("share")}
            self.assertEqual(left, {".", "bin", "lib", "lib/pkgconfig", "include"})

    def check_files(self):
        found = files_below(self.place)
        for name in os.listdir(HEADERS):
            self.assertIn(f"include/cairn/{name}", found)
        for name in files_below(os.path.join(ROOT, "bindings", "python")):
            if name.startswith("cairn/") and "__pycache__" not in name:
                self.assertIn(f"lib/cairn/python/{name}", found)
        for name in ("libcairn.so", "libcairn.so.1", "libnccl-profiler-cairn.so"):
            self.assertIn(f"lib/{name}", found)
        for name in (
            "man/man1/cairn-status.1",
            "bash-completion/completions/cairn",
            "zsh/site-functions/_cairn",
            "fish/vendor_completions.d/cairn.fish",
        ):
            self.assertIn(f"share/{name}", found)
        self.library = os.path.realpath(os.path.join(self.place, "lib", "libcairn.so.1"))
        self.assertTrue(self.library.startswith(os.path.realpath(self.place)))

    def check_program(self):
        """A program that knows the library by pkg-config alone."""
        config = os.path.join(self.place, "lib", "pkgconfig")
        environment = {**os.environ, "PKG_CONFIG_PATH": config}
        prefix = output_of("pkg-config", "--variable=prefix", "cairn", env=environment).strip()
        self.assertEqual(prefix, self.PREFIX)
        asked = ["pkg-config", f"--define-variable=prefix={self.place}"]
        version = output_of(*asked, "--modversion", "cairn", env=environment).strip()
        flags = output_of(*asked, "--cflags", "--libs", "cairn", env=environment).split()
        program = os.path.join(self.folder, "program")
        strict = ["-std=c11", "-Wall", "-Wextra", "-Werror"]
        output_of("cc", *strict, "-o", program, "-x", "c", "-", *flags, input=C_PROGRAM)
        environment = {**os.environ, "LD_LIBRARY_PATH": os.path.join(self.place, "lib")}
        environment.pop("CAIRN_AGENT", None)
        self.assertEqual(output_of(program, env=environment).strip(), version)

    def check_package(self):
        """The installed Python package finds the installed library."""
        code = "from cairn import _lib; print(_lib.library()._name)"
        package = os.path.join(self.place, "lib", "cairn", "python")
        environment = {**os.environ, "PYTHONPATH": package}
        environment.pop("CAIRN_LIBRARY", None)
        found = output_of(sys.executable, "-c", code, env=environment).strip()
        self.assertEqual(os.path.realpath(found), self.library)

    def check_command(self):
        """So does the installed command, for the trainer that it runs, beside an agent that it
        starts and that this test ends."""
        command = [os.path.join(self.place, "bin", "cairn"), "run", "--state", "1MiB", "--"]
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": self.folder,
            "XDG_RUNTIME_DIR": self.folder,
        }
        done = subprocess.run(
            [*command, "sh", "-c", "echo $CAIRN_LIBRARY"],
            env=environment,
            capture_output=True,
            text=True,
        )
        started = re.search(r"`kill ([0-9 ]+)`", done.stderr)
        self.assertTrue(started, done.stderr)
        for pid in map(int, started[1].split()):
            os.kill(pid, signal.SIGTERM)
            while os.path.exists(f"/proc/{pid}/exe"):
                time.sleep(0.02)
        self.assertEqual(os.path.realpath(done.stdout.strip()), self.library)


if __name__ == "__main__":
    unittest.main()
