// `tensorlane order`: in which order a graph's transfers should travel, and what that is worth.
#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <string>

#include "common/json/json.h"
#include "monitor/cli/commands.h"
#include "monitor/cli/output_file.h"
#include "simulator/orders/activation_order.h"
#include "simulator/orders/efficiency.h"
#include "simulator/orders/graph_file.h"
#include "simulator/orders/timetable.h"
#include "simulator/orders/transfer_order.h"

namespace tensorlane::cli {
namespace {

using orders::Graph;
using orders::Priorities;

struct OrderArguments {
  std::string algorithm;
  std::string graph;
  std::string json;
};

// What an algorithm says: numbers, and the graph that a worker follows with them.
struct Order {
  Priorities priorities;
  Graph graph;
};

Result<Order> caramel(const Graph& graph) {
  TL_ASSIGN_OR_RETURN(Priorities priorities, orders::activation_order(graph));
  TL_ASSIGN_OR_RETURN(Graph enforced, graph.with(orders::enforce_activation(graph, orders::sequence_of(priorities))));
  return Order{std::move(priorities), std::move(enforced)};
}

struct Algorithm {
  const char* name;
  Result<Priorities> (*order)(const Graph&);  // null: caramel()
};

constexpr Algorithm kAlgorithms[] = {
    {"tic", orders::tic_order},
    {"tac", orders::tac_order},
    {"layer", orders::layer_transfer_order},
    {"caramel", nullptr},
};

Result<Order> order_by(const Algorithm& algorithm, Graph graph) {
  if (algorithm.order == nullptr) return caramel(graph);
  TL_ASSIGN_OR_RETURN(Priorities priorities, algorithm.order(graph));
  return Order{std::move(priorities), std::move(graph)};
}

nlohmann::json report(const OrderArguments& args, const Order& order) {
  const orders::MakespanBounds bounds = orders::makespan_bounds(order.graph);
  const Duration makespan = orders::timetable(order.graph, order.priorities).makespan;
  nlohmann::json priorities = nlohmann::json::object();
  for (const orders::Operation op : orders::sequence_of(order.priorities))
    priorities[order.graph.name(op)] = order.priorities[op.value];
  return {{"algorithm", args.algorithm},
          {"priorities", std::move(priorities)},
          {"E", orders::schedule_efficiency(bounds, makespan)},
          {"S", orders::speedup(bounds)},
          {"makespan_s", to_seconds(makespan)},
          {"makespan_upper_s", to_seconds(bounds.upper)},
          {"makespan_lower_s", to_seconds(bounds.lower)}};
}

void print(const Order& order, const nlohmann::json& report) {
  for (const orders::Operation op : orders::sequence_of(order.priorities))
    fmt::print("{:>6}  {}\n", order.priorities[op.value], order.graph.name(op));
  fmt::print(
      "E {:.4f}  S {:.4f}  makespan {:.6f} s, between {:.6f} s (no resource ever idle) and {:.6f} s (no overlap)\n",
      report["E"].get<double>(), report["S"].get<double>(), report["makespan_s"].get<double>(),
      report["makespan_lower_s"].get<double>(), report["makespan_upper_s"].get<double>());
}

// To a file, or for "-" to standard output; nowhere if `path` is empty.
Status write_json(const std::string& path, const nlohmann::json& value) {
  if (path != "-") return write_output(path, value.dump(2) + "\n");
  fmt::print("{}\n", value.dump(2));
  return {};
}

Result<int> run(const OrderArguments& args) {
  TL_ASSIGN_OR_RETURN(Graph graph, orders::load_graph(args.graph));
  for (const Algorithm& algorithm : kAlgorithms) {
    if (args.algorithm != algorithm.name) continue;
    const Result<Order> order = order_by(algorithm, std::move(graph));
    if (!order.ok()) {
      const Status& bad = order.status();
      return Status(bad.code(), bad.what(), bad.where().empty() ? args.graph : args.graph + ": " + bad.where(),
                    bad.fix());
    }
    const nlohmann::json result = report(args, *order);
    TL_RETURN_IF_ERROR(write_json(args.json, result));
    if (args.json != "-") print(*order, result);
    return 0;
  }
  return Status(Code::kInvalidArgument, fmt::format("the algorithm '{}' is unknown", args.algorithm), "--algorithm",
                "say tic, tac, layer or caramel");
}

}  // namespace

void add_order_command(CLI::App& app, Invocation& chosen) {
  auto args = std::make_shared<OrderArguments>();
  CLI::App* command = app.add_subcommand("order", "In which order the transfers of a computation graph should travel");
  command->footer(
      "Example:\n  tensorlane order --algorithm tac graph.json --json order.json\n"
      "tic, tac and layer give every recv operation a number, caramel every send operation; the lowest travels first.\n"
      "E is the scheduling efficiency of the order (1: no resource is ever idle, 0: nothing overlaps), S what the "
      "best\n"
      "order can gain over the worst one (TicTac, section 3.2). tensorlane.torch.trace() writes the graph of a model; "
      "its\nformat is graph.schema.json of the Python package.");
  command->add_option("graph", args->graph, "The graph, a JSON file; -: standard input")
      ->required()
      ->type_name("GRAPH");
  command->add_option("--algorithm", args->algorithm, "tic, tac, layer or caramel")->required();
  command->add_option("--json", args->json, "Write the result to this file, too; -: to standard output, instead")
      ->type_name("FILE");
  command->callback([args, &chosen] { chosen.run = [args] { return run(*args); }; });
}

}  // namespace tensorlane::cli
