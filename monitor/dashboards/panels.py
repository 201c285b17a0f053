"""What the dashboards are made of: panels, variables and links of the Grafana Foundation SDK, and the pieces of PromQL that several of them use.

A panel is a function from a dashboard's builder to a panel of the SDK; `board` lays them out and numbers them.
"""

from dataclasses import dataclass, field

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.builders.stat import Panel as Stat
from grafana_foundation_sdk.builders.table import Panel as Table
from grafana_foundation_sdk.builders.timeseries import Panel as TimeSeries
from grafana_foundation_sdk.models import common, dashboard
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

WIDTH = 24  # columns of Grafana's grid
SOURCE = dashboard.DataSourceRef(type_val="prometheus", uid="${datasource}")
NAMES = ("fleet", "fabric", "job", "host")  # a dashboard's uid is "tensorlane-NAME"
COLORS = {"good": "green", "bad": "red"}

MOST_DATA_CLASSES = 7  # of a fabric file

# How busy a fleet may be before a picture of it has too many lines to read.
LINES = 15


@dataclass
class Query:
    expr: str
    legend: str = ""


@dataclass
class Shape:
    """A panel and the columns that it takes."""

    panel: object
    width: int
    height: int = field(default=8)


# ---- PromQL. A daemon's series have the labels `job` and `instance` of its scrape; its name in the fabric file is in tensorlane_host_info.


def of_hosts(expr, host='host=~"$host"'):
    """The series of the hosts that are selected, each with the label `host`."""
    return f"{expr} * on (job, instance) group_left (host) tensorlane_host_info{{{host}}}"


def of_job(expr):
    """The series of the hosts where the selected job has ranks."""
    return f'{expr} and on (job, instance) tensorlane_job_sent_bytes_total{{training_job="$job"}}'


def rate(metric, labels=""):
    return f"rate({metric}{{{labels}}}[$__rate_interval])" if labels else f"rate({metric}[$__rate_interval])"


def quantile(q, metric, by, where, labels='class=~"$class"'):
    """By class (and what else `by` names), over all hosts that `where` leaves."""
    return f"histogram_quantile({q}, sum by ({by}, le) ({where(rate(metric + '_bucket', labels))}))"


def most(expr, lines=LINES):
    return f"topk({lines}, {expr})"


def asked_for(expr, labels="asked_dscp, asked_pcp, service_level"):
    """A flow's series with what its host's fabric file asks for its class."""
    wanted = "tensorlane_class_info"
    for name in ("dscp", "pcp"):
        wanted = f'label_replace({wanted}, "asked_{name}", "$1", "{name}", "(.*)")'
    return f"{expr} * on (job, instance, class) group_left ({labels}) {wanted}"


def order_of_service():
    """The data classes' places in the order of service as numbers, 0 first: PromQL does not count with labels. `control` has none."""
    return "(" + " or ".join(f'{place} * max by (class) (tensorlane_class_info{{rank="{place}"}})' for place in range(MOST_DATA_CLASSES)) + ")"


def by_priority(names, labels='instance=~"$node"', more=""):
    """The rates of a counter that a NIC keeps once for each priority; `names` is a regular expression with {} for the number. A device has one of the names."""
    parts = []
    for priority in range(8):
        series = rate("", f'__name__=~"{names.format(priority)}", {labels}')
        parts.append(f'label_replace({series}, "priority", "{priority}", "", "")')
    joined = " or ".join(parts)
    return f'label_replace({joined}, "where", "{more}", "", "")' if more else f"({joined})"


# ---- Links and variables.


def link_to(name, title, **variables):
    """From a row or a line to another dashboard: link_to("host", "Host", host="${__data.fields.host}")."""
    chosen = "".join(f"&var-{key}={value}" for key, value in variables.items())
    return builders.DashboardLink(title).url(f"/d/tensorlane-{name}?var-datasource=${{datasource}}{chosen}&${{__url_time_range}}")


def data_source():
    return builders.DatasourceVariable("datasource").label("Data source").type("prometheus")


def choice(name, label, metric, of, several=True):
    """A variable with all values of a label. Where `several` may be chosen, all are until somebody chooses."""
    variable = (
        builders.QueryVariable(name)
        .label(label)
        .datasource(SOURCE)
        .query({"qryType": 1, "query": f"label_values({metric}, {of})", "refId": "values"})
        .refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(dashboard.VariableSort.ALPHABETICAL_ASC)
        .multi(several)
        .include_all(several)
    )
    if several:
        variable.all_value(".*").current(dashboard.VariableOption(selected=True, text="All", value="$__all"))
    return variable


def hosts():
    return choice("host", "Host", "tensorlane_host_info", "host")


def classes():
    return choice("class", "Class", "tensorlane_class_info", "class")


# ---- Panels.


def _common(panel, title, says, queries, width, height, make):
    panel.title(title).description(says).datasource(SOURCE).span(width).height(height)
    for index, query in enumerate(queries):
        panel.with_target(make(Dataquery().datasource(SOURCE).expr(query.expr).ref_id(chr(ord("A") + index)), query))
    return Shape(panel, width, height)


def _limits(bad_above):
    steps = [dashboard.Threshold(value=None, color=COLORS["good"])]
    if bad_above is not None:
        steps.append(dashboard.Threshold(value=bad_above, color=COLORS["bad"]))
    return builders.ThresholdsConfig().mode(dashboard.ThresholdsMode.ABSOLUTE).steps(steps)


def graph(title, says, unit, *queries, width=12, stacked=False, links=(), logarithmic=False):
    """Lines over time, with the last and the largest value of each in the legend."""
    legend = (
        common_builders.VizLegendOptions()
        .display_mode(common.LegendDisplayMode.TABLE)
        .placement(common.LegendPlacement.BOTTOM)
        .show_legend(True)
        .calcs(["lastNotNull", "max"])
    )
    panel = (
        TimeSeries()
        .unit(unit)
        .legend(legend)
        .tooltip(common_builders.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI).sort(common.SortOrder.DESCENDING))
        .line_width(1)
        .fill_opacity(25 if stacked else 0)
        .show_points(common.VisibilityMode.NEVER)
        .min(0)
    )
    if stacked:
        panel.stacking(common_builders.StackingConfig().mode(common.StackingMode.NORMAL).group("A"))
    if logarithmic:  # nothing that is 0 would be drawn, so the axis begins where the values do
        panel.scale_distribution(common_builders.ScaleDistributionConfig().type(common.ScaleDistribution.LOG).log(10))
    if links:
        panel.data_links(list(links))
    return _common(panel, title, says, queries, width, 8, lambda target, query: target.range().legend_format(query.legend))


def numbers(title, says, unit, *queries, width=6, bad_above=None):
    """One large number for each query, as of now; red from `bad_above` on."""
    panel = (
        Stat()
        .unit(unit)
        .thresholds(_limits(bad_above))
        .color_mode(common.BigValueColorMode.VALUE)
        .graph_mode(common.BigValueGraphMode.NONE)
        .reduce_options(common_builders.ReduceDataOptions().calcs(["lastNotNull"]))
    )
    return _common(panel, title, says, queries, width, 5, lambda target, query: target.instant().legend_format(query.legend))


def table(title, says, columns, *queries, width=12, links=(), sort=None):
    """One row for each set of labels, as of now; the queries' values beside each other. `columns`: {label or "Value #A": (heading, unit)}."""
    panel = Table().cell_height(common.TableCellHeight.SM)
    for heading, unit in columns.values():
        if unit:
            panel.override_by_name(heading, [dashboard.DynamicConfigValue(id_val="unit", value=unit)])
    for column, link in links:
        panel.override_by_name(column, [dashboard.DynamicConfigValue(id_val="links", value=[link.build()])])
    if sort:
        panel.sort_by([common_builders.TableSortByFieldState().display_name(sort).desc(True)])
    if len(queries) == 1:
        columns = {"Value" if name == "Value #A" else name: heading for name, heading in columns.items()}
    else:
        panel.with_transformation(dashboard.DataTransformerConfig(id_val="merge", options={}))
    panel.with_transformation(
        dashboard.DataTransformerConfig(
            id_val="organize",
            options={
                "excludeByName": {"Time": True},
                "indexByName": {name: index for index, name in enumerate(columns)},
                "renameByName": {name: heading for name, (heading, _) in columns.items()},
            },
        )
    )
    return _common(panel, title, says, queries, width, 8, lambda target, query: target.instant().format(PromQueryFormat.TABLE))


def board(name, title, says, variables, rows):
    """A dashboard: rows of panels, each row as wide as the page. `rows`: {title: [Shape, ...]}."""
    made = (
        builders.Dashboard(f"tensorlane: {title}")
        .uid(f"tensorlane-{name}")
        .description(says)
        .tags(["tensorlane"])
        .readonly()
        .tooltip(dashboard.DashboardCursorSync.CROSSHAIR)
        .time("now-1h", "now")
        .refresh("30s")
        .variables([data_source(), *variables])
    )
    for other in NAMES:
        if other != name:
            link = builders.DashboardLink(other.capitalize()).type(dashboard.DashboardLinkType.LINK).icon("dashboard")
            made.link(link.url(f"/d/tensorlane-{other}").tooltip(f"The {other} dashboard, same time and choices").include_vars(True).keep_time(True))
    number = 0
    for heading, shapes in rows.items():
        assert sum(shape.width for shape in shapes) % WIDTH == 0, f"{name}: the panels of {heading} do not fill their lines"
        number += 1
        made.with_row(builders.Row(heading).id(number))
        for shape in shapes:
            number += 1
            made.with_panel(shape.panel.id(number))
    return made.build()
