"""The committed dashboards: they are what monitor/dashboards/build.py makes, fit the types that the Grafana Foundation SDK has of Grafana's schema, lead to each other,
ask only for metrics that exist, and have a bounded number of lines."""

import enum
import json
import re
import subprocess
import sys
import types
import typing
import unittest
import urllib.parse

import yaml
from grafana_foundation_sdk.cog import plugins, variants
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from boards import BUILT_IN, FOLDER, NAMES, RECORDED, ROOT, daemon_metrics, load, metrics, panels, recorded_metrics, targets, used_variables, variables

MOST_PANELS = 16
BOARDS = {name: load(name) for name in NAMES}
# Labels of which a fleet has many values: a graph by one of them shows the first few.
MANY = {"host", "instance", "peer", "training_job", "user", "device"}


def misfit(value, hint, place):
    """Where a value is not of the type that the SDK declares, or ""."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint in (object, typing.Any) or isinstance(hint, typing.TypeVar):
        return ""
    if origin in (typing.Union, types.UnionType):
        found = [misfit(value, argument, place) for argument in arguments]
        return "" if "" in found else found[0]
    if origin is typing.Literal:
        return "" if value in arguments else f"{place}: {value!r} is none of {arguments}"
    if origin is list:
        found = [misfit(item, arguments[0], f"{place}[{i}]") for i, item in enumerate(value)] if isinstance(value, list) else [f"{place}: no list: {value!r}"]
        return next(filter(None, found), "")
    if origin is dict:
        return "" if isinstance(value, dict) else f"{place}: no object: {value!r}"
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return "" if value in [member.value for member in hint] else f"{place}: {value!r} is no {hint.__name__}"
    if hint is float:
        return "" if isinstance(value, (int, float)) and not isinstance(value, bool) else f"{place}: no number: {value!r}"
    if hint is variants.Dataquery:
        return model_misfit(value, place)
    if isinstance(value, dict) and hasattr(hint, "from_json"):  # the SDK leaves some objects as they were in the file
        read = hint.from_json(value)
        return lost(value, json.loads(json.dumps(read, cls=JSONEncoder)), place) or model_misfit(read, place)
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        return f"{place}: {value!r} is no {hint.__name__}"
    return model_misfit(value, place) if type(value).__module__.startswith("grafana_foundation_sdk") else ""


def model_misfit(value, place):
    hints = typing.get_type_hints(type(value))
    return next(filter(None, (misfit(getattr(value, name), hint, f"{place}.{name}") for name, hint in hints.items() if hasattr(value, name))), "")


def lost(written, read, place):
    """The first thing of a file that was not read, or ""."""
    if isinstance(written, dict) and isinstance(read, dict):
        return next(filter(None, (lost(value, read[key], f"{place}.{key}") if key in read else f"{place}.{key}" for key, value in written.items())), "")
    if isinstance(written, list) and isinstance(read, list) and len(written) == len(read):
        return next(filter(None, (lost(*pair, f"{place}[{i}]") for i, pair in enumerate(zip(written, read)))), "")
    return "" if written == read else f"{place}: {written!r} is read as {read!r}"


def links(board):
    """The URL of every link, with the name of the place where it is."""
    for link in board["links"]:
        yield "dashboard", link["url"]
    for panel in panels(board):
        config = panel.get("fieldConfig", {})
        for link in config.get("defaults", {}).get("links") or []:
            yield panel["title"], link["url"]
        for override in config.get("overrides") or []:
            for one in override["properties"]:
                for link in one["value"] if one["id"] == "links" else []:
                    yield panel["title"], link["url"]


class Files(unittest.TestCase):
    def test_are_what_the_script_builds(self):
        """Twice, in processes with other hashes of strings: an order that depends on them would differ."""
        texts = set()
        for seed in ("1", "2"):
            command = "import build; print('\\0'.join(build.text_of(name) for name in ('fleet', 'fabric', 'job', 'host')), end='')"
            done = subprocess.run([sys.executable, "-c", command], cwd=FOLDER, capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed, "PYTHONDONTWRITEBYTECODE": "1"})
            texts.add(done.stdout)
        self.assertEqual(len(texts), 1, "the script does not always build the same")
        for name, text in zip(NAMES, texts.pop().split("\0")):
            self.assertEqual((FOLDER / f"{name}.json").read_text(), text, f"{name}.json is not what build.py makes: run it")

    def test_fit_the_schema(self):
        """Read into the SDK's types and written again, a file has lost nothing: it has no key that Grafana's schema lacks. And every value has its type."""
        plugins.register_default_plugins()
        for name, board in BOARDS.items():
            read = Dashboard.from_json(board)
            self.assertEqual(lost(board, json.loads(json.dumps(read, cls=JSONEncoder)), name), "", "the schema lacks it")
            self.assertEqual(misfit(read, Dashboard, name), "")

    def test_the_check_finds_misfits(self):
        plugins.register_default_plugins()
        for path, wrong in ((("refresh",), 5), (("panels", 1, "gridPos", "w"), "12"), (("panels", 1, "targets", 0, "format"), "tables"), (("graphTooltip",), 7)):
            board = json.loads(json.dumps(BOARDS["fabric"]))
            inner = board
            for key in path[:-1]:
                inner = inner[key]
            inner[path[-1]] = wrong
            self.assertNotEqual(misfit(Dashboard.from_json(board), Dashboard, "x"), "", f"{path} = {wrong!r} is not found")
        board = json.loads(json.dumps(BOARDS["fabric"]))
        board["panels"][1]["targets"][0]["expression"] = "up"
        self.assertNotEqual(lost(board, json.loads(json.dumps(Dashboard.from_json(board), cls=JSONEncoder)), "x"), "", "a key that Grafana does not know is not found")


class Structure(unittest.TestCase):
    def test_names_are_unique(self):
        self.assertEqual({board["uid"] for board in BOARDS.values()}, {f"tensorlane-{name}" for name in NAMES})
        self.assertEqual(len({board["title"] for board in BOARDS.values()}), len(NAMES))
        for name, board in BOARDS.items():
            self.assertEqual(len({panel["id"] for panel in board["panels"]}), len(board["panels"]), name)
            self.assertEqual(len({panel["title"] for panel in board["panels"]}), len(board["panels"]), name)
            for panel in panels(board):
                self.assertEqual(len({target["refId"] for target in panel["targets"]}), len(panel["targets"]), panel["title"])

    def test_panels_do_not_overlap(self):
        for name, board in BOARDS.items():
            taken = {}
            for panel in board["panels"]:
                at = panel["gridPos"]
                self.assertTrue(0 <= at["x"] and at["x"] + at["w"] <= 24 and at["w"] > 0 and at["h"] > 0, f"{name}: {panel['title']} is outside of the page")
                for cell in ((x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])):
                    self.assertNotIn(cell, taken, f"{name}: {panel['title']} lies on {taken.get(cell)}")
                    taken[cell] = panel["title"]

    def test_variables(self):
        """Those that are used exist, and the reverse; a query's `All` fits a regular expression, and one value an equality."""
        for name, board in BOARDS.items():
            known = variables(board)
            used = {"datasource"}
            for panel, target in targets(board):
                self.assertEqual([panel["datasource"]["uid"], target["datasource"]["uid"]], ["${datasource}"] * 2, panel["title"])
                used |= used_variables(target["expr"]) - BUILT_IN
                for variable in used_variables(target["expr"]) - BUILT_IN:
                    compared = set(re.findall(r'(=~?)"\$%s"' % variable, target["expr"]))
                    self.assertEqual(compared, {"=~" if known[variable]["includeAll"] else "="}, f"{name}: {panel['title']}: {variable}")
            self.assertEqual(used, set(known), name)
            for variable in known.values():
                self.assertEqual(variable["multi"], variable["includeAll"], variable["name"])

    def test_links_lead_to_dashboards(self):
        """Each dashboard leads to the three others; a row or line brings variables that its target has, from columns or labels that the panel has."""
        uids = {board["uid"]: board for board in BOARDS.values()}
        for name, board in BOARDS.items():
            reached = set()
            for place, url in links(board):
                address = urllib.parse.urlsplit(url)
                self.assertTrue(address.path.startswith("/d/") and address.path[3:] in uids, f"{name}: {place}: {url}")
                reached.add((place == "dashboard", address.path[3:]))
                brought = {key[4:]: value for key, value in urllib.parse.parse_qsl(address.query) if key.startswith("var-")}
                self.assertLessEqual(set(brought), set(variables(uids[address.path[3:]])), f"{name}: {place}: {url}")
                panel = next((panel for panel in panels(board) if panel["title"] == place), None)
                for column in re.findall(r"__data\.fields\.(\w+)", url):
                    headings = [h for step in panel["transformations"] if step["id"] == "organize" for h in step["options"]["renameByName"].values()]
                    self.assertIn(column, headings, f"{name}: {place}")
                for label in re.findall(r"__field\.labels\.(\w+)", url):
                    self.assertTrue(all(re.search(r"by \([^)]*\b%s\b" % label, target["expr"]) for target in panel["targets"]), f"{name}: {place}: no label {label}")
            self.assertEqual({uid for whole, uid in reached if whole}, set(uids) - {board["uid"]}, name)
            if name in ("fleet", "job"):
                self.assertIn((False, "tensorlane-host"), reached, f"{name}: no line or row leads to a host")
            self.assertTrue(all(link["includeVars"] and link["keepTime"] for link in board["links"]), name)


class Panels(unittest.TestCase):
    def test_say_what_they_show(self):
        for name, board in BOARDS.items():
            self.assertLessEqual(len(panels(board)), MOST_PANELS, name)
            for panel in panels(board):
                self.assertRegex(panel["description"], r"^[A-Z].*\. Good: .*\.$|^[A-Z].* Good: .*\.$", f"{name}: {panel['title']}")
                if panel["type"] != "table":
                    self.assertTrue(panel["fieldConfig"]["defaults"].get("unit"), f"{name}: {panel['title']} has no unit")
                    self.assertTrue(all(target["legendFormat"] for target in panel["targets"]), f"{name}: {panel['title']} has a line without a name")

    def test_legends_name_labels_that_are_there(self):
        for name, board in BOARDS.items():
            for panel, target in targets(board):
                for label in re.findall(r"\{\{(\w+)\}\}", target.get("legendFormat", "")):
                    there = re.search(r"by \([^)]*\b%s\b" % label, target["expr"]) or (label in ("instance", "device") and " by (" not in target["expr"])
                    self.assertTrue(there, f"{name}: {panel['title']}: no label {label} in {target['expr']}")

    def test_ask_for_metrics_that_exist(self):
        known = daemon_metrics() | recorded_metrics()
        for name, board in BOARDS.items():
            asked = {metric for _, target in targets(board) for metric in metrics(target["expr"])}
            asked |= {v["query"]["query"].removeprefix("label_values(").split(",")[0] for v in variables(board).values() if v["type"] == "query"}
            self.assertEqual(asked - known, set(), name)
        self.assertEqual(metrics('rate(no_such_total{a="up"}[1m]) * on (job) group_left (x) up'), {"no_such_total", "up"})

    def test_the_exporter_keeps_what_they_ask_for(self):
        """The README's choice of ethtool's counters lets through each that a panel shows."""
        chosen = re.compile(re.search(r"--collector\.ethtool\.metrics-include='([^']*)'", (FOLDER / "README.md").read_text())[1])
        drivers = dict(re.findall(r"^# HELP (node_ethtool_\w+) Network interface (\S+)$", (RECORDED / "node_exporter.prom").read_text(), re.M))
        asked = {metric for board in BOARDS.values() for _, target in targets(board) for metric in metrics(target["expr"]) if metric.startswith("node_ethtool_")}
        self.assertGreater(len(asked), 50)
        self.assertEqual({metric for metric in asked if not chosen.search(drivers[metric])}, set())

    def test_name_no_class(self):
        """Names of classes are the operator's own."""
        for name, board in BOARDS.items():
            for panel, target in targets(board):
                for value in re.findall(r'\bclass(?:=~|!~|!=|=)"([^"]*)"', target["expr"]):
                    self.assertEqual(value, "$class", f"{name}: {panel['title']}")

    def test_have_few_lines(self):
        """A graph by a label of which there are many shows the first few; only tables have a row for each, and they are asked once."""
        for name, board in BOARDS.items():
            for panel, target in targets(board):
                expr = target["expr"]
                if panel["type"] == "timeseries":
                    bounded = re.match(r"(?:top|bottom)k\((?:5|10|15), ", expr)
                    whole = re.match(r"\(?(?:histogram_quantile\([\d.]+, )?(?:sum|max|count)(?: by \(([^)]*)\))?", expr)
                    self.assertTrue(bounded or whole, f"{name}: {panel['title']}: {expr}")
                    many = set() if bounded else set((whole[1] or "").split(", ")) & MANY
                    self.assertFalse(many, f"{name}: {panel['title']}: a line for each of {many}")
                else:
                    self.assertTrue(target["instant"], f"{name}: {panel['title']}")
                self.assertNotRegex(expr, r"\btensor\b")


class Provisioning(unittest.TestCase):
    def test_files(self):
        folder = ROOT / "deploy" / "grafana"
        sources = yaml.safe_load((folder / "datasource.yaml").read_text())
        self.assertEqual(sources["apiVersion"], 1)
        self.assertEqual([source["type"] for source in sources["datasources"]], ["prometheus"])
        providers = yaml.safe_load((folder / "dashboards.yaml").read_text())
        self.assertEqual(providers["apiVersion"], 1)
        (provider,) = providers["providers"]
        self.assertEqual((provider["type"], provider["options"]["path"]), ("file", "/usr/share/tensorlane/dashboards"))
        installed = (ROOT / "deploy" / "CMakeLists.txt").read_text()
        self.assertIn("DESTINATION ${CMAKE_INSTALL_DATADIR}/tensorlane/dashboards", installed)
        for name in NAMES:
            self.assertEqual(variables(BOARDS[name])["datasource"]["query"], sources["datasources"][0]["type"])


if __name__ == "__main__":
    unittest.main()
