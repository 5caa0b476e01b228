"""Prints one line for each test in a JUnit file: usage: report.py MODULE FILE"""

import sys
import xml.etree.ElementTree as tree

module, path = sys.argv[1:]
try:
    cases = list(tree.parse(path).getroot().iter("testcase"))
except (OSError, tree.ParseError) as error:
    cases = []
    print(f"{module}: no report: {error}")
for case in cases:
    outcome = "ok"
    for tag in ("error", "failure", "skipped"):
        if case.find(tag) is not None:
            outcome = tag
    print(module, case.get("name").replace(" ", "_"), outcome)
