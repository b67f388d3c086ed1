"""The examples of the package's documentation."""

from __future__ import annotations

import doctest
import unittest

import spark_ccl.communicator
import spark_ccl.groups
import spark_ccl.unique_id


def load_tests(loader: unittest.TestLoader, tests: unittest.TestSuite, pattern: str | None) -> unittest.TestSuite:
    for module in (spark_ccl.communicator, spark_ccl.groups, spark_ccl.unique_id):
        suite = doctest.DocTestSuite(module)
        assert suite.countTestCases() > 0, module
        tests.addTests(suite)
    return tests
