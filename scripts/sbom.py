#!/usr/bin/env python3
"""Lists what others have made and a package contains, as a software bill of materials.

    sbom.py PACKAGE VERSION STATIC DIRECTORY CRATE...

The crates of this workspace become one component, and each crate that they contain another one, with
its licence and the SHA-256 of Cargo.lock. STATIC is the source packages of Debian from which the binaries
have code: "NAME (= VERSION), ...". Crates that only work while a build goes on are
left out. Libraries that a crate's sources contain are listed, too. DIRECTORY gets sbom.cdx.json (CycloneDX 1.5),
and THIRD-PARTY, which has the licences of all of these.
"""

import datetime
import json
import os
import pathlib
import re
import subprocess
import sys
import tomllib

TARGET = "x86_64-unknown-linux-gnu"
TOP = pathlib.Path(__file__).resolve().parent.parent
# Libraries that are no crates: what the page of a report contains. Its folder has the sums.
VENDORED = [("postproc", "uPlot", "1.6.32", "MIT", "Leon Sorokin", "postproc/src/report/vendor/uplot")]
LICENCES = re.compile(r"(LICEN[CS]E|COPYING|COPYRIGHT|NOTICE|UNLICENSE)", re.I)


def cargo(*words):
    """What a command of cargo prints."""
    run = ["cargo", *words, "--locked", "--manifest-path", str(TOP / "Cargo.toml")]
    return subprocess.run(run, check=True, capture_output=True, text=True).stdout


def tree(crates):
    """The crates that these ones contain, and which of them contains which."""
    contains, path = {}, []
    shape = ["--prefix", "depth", "--format", "{p}", "--edges", "normal,no-proc-macro", "--target", TARGET]
    for line in cargo("tree", *shape, *(word for crate in crates for word in ("-p", crate))).splitlines():
        if found := re.match(r"(\d+)(\S+) v(\S+)", line):
            depth, crate = int(found[1]), (found[2], found[3])
            contains.setdefault(crate, set())
            del path[depth:]
            if path:
                contains[path[-1]].add(crate)
            path.append(crate)
    return contains


def main(package, version, static, directory, *crates):
    """Writes both files."""
    contains = tree(crates)
    metadata = json.loads(cargo("metadata", "--format-version", "1", "--filter-platform", TARGET))
    known = {(p["name"], p["version"]): p for p in metadata["packages"]}
    lock = tomllib.loads((TOP / "Cargo.lock").read_text())["package"]
    sums = {(p["name"], p["version"]): p["checksum"] for p in lock if "checksum" in p}
    # Those without a sum are of this workspace.
    foreign = sorted(crate for crate in contains if crate in sums)
    purl = {crate: "pkg:cargo/{}@{}".format(*crate) for crate in foreign}

    components, third, seen, vendored = [], [], {}, []
    for name, number in foreign:
        crate = known[name, number]
        # Some old crates write a stroke for OR.
        licence = (crate["license"] or "NOASSERTION").replace("/", " OR ")
        components.append({
            "type": "library", "bom-ref": purl[name, number], "name": name, "version": number,
            "description": " ".join((crate["description"] or "").split()),
            "hashes": [{"alg": "SHA-256", "content": sums[name, number]}],
            "licenses": [{"expression": licence}], "purl": purl[name, number],
        })
        # A crate of a library of C has the library's version behind its own.
        if bundled := re.search(r"\+(\w+)\.(\d.*)", number):
            components.append({
                "type": "library", "bom-ref": f"{bundled[1]}@{bundled[2]}", "name": bundled[1],
                "version": bundled[2], "description": f"sources in the crate {name}",
            })
        third.append(f"{name} {number}: {licence}\n" + "; ".join(crate["authors"]))
        home = pathlib.Path(crate["manifest_path"]).parent
        files = (f for f in [*home.iterdir(), *home.glob("*/*")] if LICENCES.match(f.name) and f.is_file())
        for file in sorted(files):
            text = file.read_text(errors="replace")
            first = seen.setdefault(text, f"{file.relative_to(home)} of {name} {number}")
            third.append(f"--- {file.relative_to(home)}\n{text}" if first.endswith(f" of {name} {number}") else f"--- as {first}")
    for crate, name, number, licence, author, folder in VENDORED:
        if not any(crate == one for one, _ in contains):
            continue
        of = f"pkg:npm/{name.lower()}@{number}"
        code = next(line for line in (TOP / folder / "SHA256SUMS").read_text().splitlines() if line.endswith(".js"))
        components.append({
            "type": "library", "bom-ref": of, "name": name, "version": number,
            "description": "draws the charts of the report's page",
            "hashes": [{"alg": "SHA-256", "content": code.split()[0]}],
            "licenses": [{"expression": licence}], "purl": of,
        })
        vendored.append(of)
        third.append(f"{name} {number}: {licence}\n{author}\n\n--- LICENSE\n" + (TOP / folder / "LICENSE").read_text())
    for name, number in re.findall(r"(\S+) \(= ([^)]*)\)", static):
        of = f"pkg:deb/debian/{name}@{number}?arch=source"
        components.append({"type": "library", "bom-ref": of, "name": name, "version": number, "purl": of})

    own = f"{package}@{version}"
    time = datetime.datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), datetime.timezone.utc)
    direct = {c for crate in contains if crate not in sums for c in contains[crate] if c in sums}
    bom = {
        "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
        "metadata": {
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": {
                "type": "application", "bom-ref": own, "name": package, "version": version,
                "licenses": [{"license": {"id": "GPL-2.0-only"}}],
            },
        },
        "components": components,
        "dependencies": [
            {"ref": own, "dependsOn": sorted(purl[c] for c in direct) + vendored},
            *({"ref": purl[c], "dependsOn": sorted(purl[d] for d in contains[c] if d in purl)} for c in foreign),
        ],
    }
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "sbom.cdx.json").write_text(json.dumps(bom, indent=1, ensure_ascii=False) + "\n")
    (directory / "THIRD-PARTY").write_text("\n\n".join(third) + "\n")


main(*sys.argv[1:])
