"""torchft's own tests, from its wheel, on the backend: the name ProcessGroupGloo in them is that of our process group. A
script of one rank, run by ecosystem/test_torchft.py. Prints what became of each test. Exit status 1: some have failed.
"""

import sys
import unittest

import torch
import torchft.local_sgd_integ_test as local_sgd
import torchft.manager_integ_test as managers
import torchft.process_group_test as groups
from tensorlane.torch.torchft import ProcessGroupTensorlane

# How Gloo says in these tests' patterns what the backend says in words of its own.
WORDS = {"Connection closed by peer": "has left process group", "Socket Timeout": "have not come"}
OURS = ("test_gloo_apis_0_cpu", "test_gloo_timeout", "test_functional_collectives")


class Words:
    def assertRaisesRegex(self, error, pattern, *arguments, **options):
        for gloos, ours in WORDS.items():
            pattern = pattern.replace(gloos, f"{gloos}|{ours}")
        return super().assertRaisesRegex(error, pattern, *arguments, **options)


class ProcessGroupTest(Words, groups.ProcessGroupTest):
    pass


class MultiPgTest(Words, groups.NormalGlooMultiPgTest):
    pass


class Table(unittest.TestResult):
    def say(self, outcome, test, why=""):
        print(f"{outcome} {test.id().split('.')[-1]} {why}", flush=True)

    def addSuccess(self, test):
        super().addSuccess(test)
        self.say("pass", test)

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.say("skip", test, reason)

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self.say("fail", test, self.failures[-1][1])

    def addError(self, test, error):
        super().addError(test, error)
        self.say("fail", test, self.errors[-1][1])


def main():
    torch.set_num_threads(1)
    for module in (groups, managers, local_sgd):
        module.ProcessGroupGloo = ProcessGroupTensorlane
    load = unittest.TestLoader().loadTestsFromTestCase
    tests = unittest.TestSuite([
        *map(ProcessGroupTest, OURS), load(MultiPgTest), load(managers.ManagerIntegTest), load(local_sgd.LocalSGDIntegTest),
    ])
    table = Table()
    tests.run(table)
    return 0 if table.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
