#!/usr/bin/env python3
"""Checks every crate of Cargo.lock against deny.toml: licences, banned crates, wildcards, sources and checksums.

    tests/supply_chain.py [FOLDER]      the workspace; default: this one. Exit code 1 if a crate may not come in

It is for machines without cargo-deny, whose options in deny.toml it takes, and reads nothing but `cargo metadata` and Cargo.lock. What
it cannot do: advisories, which need their database.
"""
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

REGISTRY = "registry+"


def allowed(expression, licenses):
    """Whether an SPDX expression can be met with these licences: AND binds closer than OR."""
    tokens = re.findall(r"\(|\)|[^\s()]+", expression.replace("/", " OR "))
    place = 0

    def one():
        nonlocal place
        if place >= len(tokens):
            return False
        token = tokens[place]
        place += 1
        if token == "(":
            met = either()
            place += 1
            return met
        if tokens[place : place + 1] == ["WITH"]:
            token = f"{token} WITH {tokens[place + 1]}"
            place += 2
        return token in licenses

    def both():
        nonlocal place
        met = one()
        while tokens[place : place + 1] == ["AND"]:
            place += 1
            met = one() and met
        return met

    def either():
        nonlocal place
        met = both()
        while tokens[place : place + 1] == ["OR"]:
            place += 1
            met = both() or met
        return met

    return either() and place == len(tokens)


def faults(packages, locked, rules):
    """What of these packages the rules refuse, one line each."""
    licenses = rules["licenses"]
    clarified = {rule["crate"]: rule["expression"] for rule in licenses.get("clarify", [])}
    exceptions = {rule["crate"]: rule["allow"] for rule in licenses.get("exceptions", [])}
    banned = {rule["crate"] for rule in rules["bans"].get("deny", [])}
    checksums = {(one["name"], one["version"]): one.get("checksum") for one in locked}
    for package in packages:
        name, source = package["name"], package["source"]
        what = f"{name} {package['version']}"
        may = set(licenses["allow"]) | set(exceptions.get(name, []))
        license = package["license"] or clarified.get(name, "")
        if not allowed(license, may):
            yield f"{what}: the licence '{license}' is not in deny.toml"
        if name in banned:
            yield f"{what}: the crate is banned in deny.toml"
        if source is not None and not source.startswith(REGISTRY):
            yield f"{what}: its source {source} is no registry"
        if source is not None and not checksums.get((name, package["version"])):
            yield f"{what}: Cargo.lock holds no checksum of it"
        # Of the workspace alone: what others require is theirs.
        if source is None:
            wild = [need["name"] for need in package["dependencies"] if need["req"] == "*" and not need.get("path")]
            yield from (f"{what}: takes any version of {need}" for need in wild)


def main():
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent)
    command = ["cargo", "metadata", "--locked", "--all-features", "--format-version", "1"]
    packages = json.loads(subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE).stdout)["packages"]
    locked = tomllib.loads((folder / "Cargo.lock").read_text())["package"]
    rules = tomllib.loads((folder / "deny.toml").read_text())
    found = sorted(faults(packages, locked, rules))
    for fault in found:
        print(fault)
    print(f"supply chain: {len(packages)} crates, {len(found)} that may not come in")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
