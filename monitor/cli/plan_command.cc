// `tensorlane plan`: what priorities would gain for a model on a fabric.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <sstream>

#include "common/fabric/fabric.h"
#include "common/json/json.h"
#include "monitor/cli/calibrate.h"
#include "monitor/cli/commands.h"
#include "monitor/cli/output_file.h"
#include "simulator/orders/graph_file.h"
#include "simulator/planner/model.h"
#include "simulator/planner/planner.h"
#include "simulator/planner/report.h"
#include "simulator/planner/traced.h"

namespace tensorlane::cli {
namespace {

using simulator::Exchange;
using simulator::PlanRequest;

struct PlanArguments {
  std::string model, layer_times, fabric, network_model, pattern = "ps", exchange, only, json_file, chart;
  double batch = 0, rate = 0, gbps = 0;
  std::vector<double> thresholds;
  double host_latency_us = static_cast<double>(simulator::Assumptions{}.wake.value) / 1e3;
  double batch_mib = 0, sum_gbytes = simulator::Assumptions{}.sum_bytes_per_second / 1e9;
  int hosts = 0, ranks_per_host = 1, most_classes = 8;
  std::vector<int> jobs;  // empty: one, and where policies are compared two
  simulator::Assumptions assume;
  double buffer_mib = 0, buffer_alpha = 1, foreign_load = 0;
  bool pfc = false, go_back_n = false;
  std::vector<double> ecn;                   // K_min and K_max in KiB, P_max
  std::optional<CalibratedNetwork> network;  // of network_model
};

constexpr const char* kExamples =
    "Example: what would priorities gain for VGG-19 on eight hosts with 10 Gbit/s, where one GPU does 36.9 images/s?\n"
    "  tensorlane plan --model vgg-19 --batch 64 --gpu-images-per-second 36.9 --hosts 8 --gbps 10 --pattern ps --json "
    "plan.json\n"
    "For a model of your own, which tensorlane.torch.trace(model, example, \"graph.json\") has written down:\n"
    "  tensorlane plan --model graph.json --hosts 8 --gbps 10 --pattern ring\n";

Status invalid(const std::string& what, const std::string& where, const std::string& fix) {
  return {Code::kInvalidArgument, what, where, fix};
}

Result<std::string> contents(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  std::error_code error;
  if (!in || std::filesystem::is_directory(path, error))
    return Status(Code::kNotFound, "the file cannot be read", path, "name a file that exists");
  return text.str();
}

// Ranges let through what is no number.
Status check_numbers(const PlanArguments& a) {
  const std::array numbers{a.batch,
                           a.rate,
                           a.gbps,
                           a.host_latency_us,
                           a.batch_mib,
                           a.sum_gbytes,
                           a.assume.goodput,
                           a.assume.overhead_share,
                           a.assume.overhead_s,
                           a.buffer_mib,
                           a.buffer_alpha,
                           a.foreign_load};
  const auto is_number = [](double x) { return std::isfinite(x); };
  if (std::ranges::all_of(numbers, is_number) && std::ranges::all_of(a.ecn, is_number) &&
      std::ranges::all_of(a.thresholds, is_number))
    return {};
  return invalid("a value is no number", "tensorlane plan", "see `tensorlane plan --help`");
}

// What the request's layers are, and for the report where they and their times come from.
struct Layers {
  simulator::Workload workload;
  nlohmann::json about;
};

// A model that the planner knows has no times of its own.
Result<Layers> known_model(const PlanArguments& a) {
  TL_ASSIGN_OR_RETURN(const simulator::Model model, simulator::find_model(a.model));
  if (a.layer_times.empty() == (a.rate == 0))
    return invalid("the speed of a rank is not known", "tensorlane plan",
                   "give either --gpu-images-per-second or --layer-times");
  if (!a.layer_times.empty()) {
    TL_ASSIGN_OR_RETURN(const std::string text, contents(a.layer_times));
    TL_ASSIGN_OR_RETURN(simulator::Workload workload, simulator::workload_of(model, text, a.layer_times));
    return Layers{std::move(workload), {{"times", a.layer_times}}};
  }
  if (a.batch == 0)
    return invalid("the batch is not known", "tensorlane plan", "give --batch: samples per rank and iteration");
  return Layers{simulator::workload_of(model, a.batch, a.rate),
                {{"times", "multiply-adds of the layers at the given speed"}}};
}

// A graph has: they are replaced, or scaled to a speed, where one is given.
Result<Layers> traced_model(const PlanArguments& a) {
  TL_ASSIGN_OR_RETURN(const orders::Graph graph, orders::load_graph(a.model));
  TL_ASSIGN_OR_RETURN(simulator::TracedWorkload traced, simulator::workload_of(graph, a.model));
  Layers layers{std::move(traced.workload), {{"times", "the graph's operations"}}};
  if (!a.layer_times.empty() && a.rate != 0)
    return invalid("--layer-times and --gpu-images-per-second both say how fast a rank is", "tensorlane plan",
                   "give one of them, or neither for the graph's own times");
  if (!a.layer_times.empty()) {
    TL_ASSIGN_OR_RETURN(const std::string text, contents(a.layer_times));
    TL_ASSIGN_OR_RETURN(layers.workload,
                        simulator::with_layer_times(std::move(layers.workload), a.model, text, a.layer_times));
    layers.about["times"] = a.layer_times;
  } else if (a.rate != 0) {
    if (a.batch == 0)
      return invalid("the batch is not known", "tensorlane plan", "give --batch: samples per rank and iteration");
    layers.workload = simulator::scaled_to(layers.workload, Duration(std::llround(a.batch / a.rate * 1e9)));
    layers.about["times"] = "the graph's operations, scaled to the given speed";
  }
  layers.about["graph_layers"] = layers.workload.layers.size();
  layers.about["graph_parameters_without_gradient"] = traced.without_gradient;
  layers.about["graph_gradients_later_by_at_most_s"] = to_seconds(traced.longest_delay);
  layers.about["graph_order"] = "gradients leave in the reverse of the order in which their parameters are needed";
  return layers;
}

Result<Layers> layers_of(const PlanArguments& a) {
  const Result<simulator::Model> known = simulator::find_model(a.model);
  std::error_code error;
  if (!known.ok() && std::filesystem::exists(a.model, error)) return traced_model(a);
  if (!known.ok()) {
    const Status& unknown = known.status();
    return Status(unknown.code(), unknown.what(), unknown.where(), unknown.fix() + ", or a file with a traced graph");
  }
  return known_model(a);
}

struct Surroundings {
  simulator::Topology topology;
  std::uint32_t lossless = ~1u;  // levels of service, as bits
};

// As the fabric's classes are; those beyond the file's are like its last.
std::uint32_t lossless_levels(const fabric::ClassTable& classes) {
  std::uint32_t levels = 0;
  for (std::size_t i = 0; i < kMaxDataClasses; ++i) {
    const bool lossless = classes.data[std::min(i, classes.data.size() - 1)].lossless;
    levels |= (lossless ? 1u : 0u) << (i + 1);
  }
  return levels;
}

Result<Surroundings> place(const PlanArguments& a) {
  if (!a.fabric.empty()) {
    if (a.hosts != 0 || a.gbps != 0)
      return invalid("--fabric and --hosts or --gbps both describe the network", "tensorlane plan", "give one of them");
    TL_ASSIGN_OR_RETURN(const fabric::Fabric fabric, fabric::load(a.fabric, fabric::Keys::kOptional));
    if (fabric.hosts.size() < 2) return invalid("the fabric has one host", a.fabric, "plan for at least two");
    TL_ASSIGN_OR_RETURN(simulator::Topology topology, simulator::topology_of(fabric, a.assume.hop));
    return Surroundings{std::move(topology), lossless_levels(fabric.classes)};
  }
  if (a.hosts == 0 || (a.gbps == 0 && !a.network))
    return invalid("the network is not known", "tensorlane plan",
                   "give --hosts and --gbps or --network-model, or --fabric");
  const BitsPerSecond rate = a.network ? a.network->rate : BitsPerSecond(std::llround(a.gbps * 1e9));
  return Surroundings{simulator::star(static_cast<std::uint16_t>(a.hosts), rate, a.assume.hop)};
}

Result<simulator::Congestion> congestion(const PlanArguments& a) {
  simulator::Congestion c;
  const auto bytes = [](double count, double unit) { return Bytes(static_cast<std::uint64_t>(count * unit)); };
  if (a.buffer_mib > 0) c.buffer = simulator::SharedBuffer{bytes(a.buffer_mib, 1048576), a.buffer_alpha};
  if (a.pfc && !c.buffer) return invalid("memory without an end is never full", "--pfc", "add --switch-buffer-mib");
  if (a.go_back_n && !c.buffer)
    return invalid("memory without an end loses nothing", "--go-back-n", "add --switch-buffer-mib");
  c.flow_control = a.pfc;
  c.go_back_n = a.go_back_n;
  if (!a.ecn.empty()) {
    if (a.ecn.size() != 3 || !(a.ecn[0] >= 0 && a.ecn[0] < a.ecn[1] && a.ecn[2] > 0 && a.ecn[2] <= 1))
      return invalid("these are no thresholds for marks", "--ecn",
                     "give K_min and K_max in KiB and P_max, for example 100,400,0.1");
    c.marking = simulator::Marking{bytes(a.ecn[0], 1024), bytes(a.ecn[1], 1024), a.ecn[2]};
  }
  c.foreign_load = a.foreign_load;
  return c;
}

Result<PlanRequest> request_of(const PlanArguments& a, const simulator::Workload& workload) {
  PlanRequest r;
  r.workload = workload;
  TL_ASSIGN_OR_RETURN(Surroundings here, place(a));
  r.topology = std::move(here.topology);
  const bool server = a.pattern == "ps";
  std::string name = server ? "parameter_server" : a.pattern;
  std::ranges::replace(name, '-', '_');
  r.pattern = protocol::pattern_from_name(name);  // none for auto
  // A parameter server is pushed to and pulled from, unless it is said otherwise.
  r.exchange = a.exchange.empty() ? (server ? Exchange::kPushPull : Exchange::kAllreduce)
                                  : (a.exchange == "push-pull" ? Exchange::kPushPull : Exchange::kAllreduce);
  if (!server && r.exchange == Exchange::kPushPull)
    return invalid("only ps has servers to push to and pull from", "--exchange push-pull",
                   "use --pattern ps or --exchange allreduce");
  r.batch = Bytes(static_cast<std::uint64_t>(a.batch_mib * 1048576));
  r.ranks_per_host = static_cast<std::uint32_t>(a.ranks_per_host);
  r.most_classes = static_cast<std::uint8_t>(a.most_classes);
  if (!a.thresholds.empty() && a.only != "network")
    return invalid("thresholds are of one policy", "--thresholds", "add --only network");
  if (!std::ranges::is_sorted(a.thresholds, std::greater<>()) || a.thresholds.size() >= kMaxDataClasses)
    return invalid("these are no thresholds", "--thresholds",
                   fmt::format("give at most {}, descending, each between 0 and 1", kMaxDataClasses - 1));
  TL_ASSIGN_OR_RETURN(r.congestion, congestion(a));
  r.congestion.lossless = here.lossless;
  r.only = a.only;
  r.thresholds = a.thresholds;
  r.assume = a.assume;
  r.assume.wake = Duration(std::llround(a.host_latency_us * 1e3));
  r.assume.sum_bytes_per_second = a.sum_gbytes * 1e9;
  return r;
}

// What was measured takes the place of what would be assumed: payload goes at that rate, and the overhead of a transfer
// that is not the engines' is that of the two cables to and from the switch.
Status measured_network(PlanArguments& a) {
  if (a.network_model.empty()) return {};
  if (a.gbps != 0 || !a.fabric.empty())
    return invalid("--network-model and --gbps or --fabric both describe the network", "tensorlane plan",
                   "give one of them");
  TL_ASSIGN_OR_RETURN(const std::string text, contents(a.network_model));
  TL_ASSIGN_OR_RETURN(a.network, read_calibration(text, a.network_model));
  a.assume.goodput = 1;
  const Duration wakes(std::llround(2 * a.host_latency_us * 1e3));
  a.assume.hop = std::max(Duration((a.network->overhead - wakes).value / 2), nanoseconds(0));
  return {};
}

Result<std::vector<simulator::Planned>> plans_of(const PlanArguments& a, PlanRequest request) {
  std::vector<int> jobs = a.jobs;
  if (jobs.empty()) jobs = a.only.empty() ? std::vector{1, 2} : std::vector{1};
  std::vector<simulator::Planned> plans;
  for (const int count : jobs) {
    request.jobs = static_cast<std::uint32_t>(count);
    TL_ASSIGN_OR_RETURN(simulator::Report report, simulator::make_plan(request));
    plans.push_back({request, std::move(report)});
  }
  return plans;
}

Result<int> plan(PlanArguments a) {
  TL_RETURN_IF_ERROR(check_numbers(a));
  // Before the simulations, which may take minutes.
  TL_RETURN_IF_ERROR(can_write_output(a.json_file));
  TL_RETURN_IF_ERROR(can_write_output(a.chart));
  TL_RETURN_IF_ERROR(measured_network(a));
  TL_ASSIGN_OR_RETURN(const Layers layers, layers_of(a));
  TL_ASSIGN_OR_RETURN(const PlanRequest request, request_of(a, layers.workload));
  TL_ASSIGN_OR_RETURN(const std::vector<simulator::Planned> plans, plans_of(a, request));
  nlohmann::json about{{"model", a.model}, {"hosts", request.topology.hosts}, {"pattern", a.pattern}};
  about.update(layers.about);
  if (a.batch > 0) about["batch"] = a.batch;
  if (a.rate > 0) about["images_per_second_of_a_rank"] = a.rate;
  if (!a.fabric.empty()) about["fabric"] = a.fabric;
  if (!a.network_model.empty()) about["network_model"] = a.network_model;
  std::printf("%s", to_text(plans, about).c_str());
  for (const auto& [of, report] : plans) {
    const double images = a.batch * of.topology.hosts * a.ranks_per_host * of.jobs;
    if (a.batch > 0)
      std::printf("%.1f samples/s in all%s%s\n", images / report.recommended.iteration_s,
                  of.only.empty() ? " as recommended" : "",
                  of.jobs > 1 ? fmt::format(", {} jobs", of.jobs).c_str() : "");
  }
  TL_RETURN_IF_ERROR(write_output(a.json_file, to_json(plans, about).dump(2) + "\n"));
  if (!a.chart.empty()) {
    const std::string title = fmt::format("{}: iteration time on {} hosts", a.model, request.topology.hosts);
    TL_RETURN_IF_ERROR(write_output(a.chart, to_svg(plans, title)));
  }
  return 0;
}

void add_congestion(CLI::App& command, PlanArguments& a) {
  command
      .add_option("--switch-buffer-mib", a.buffer_mib,
                  "memory that all ports of a switch share; what it refuses is sent again; 0: without an end")
      ->check(CLI::Range(0.0, 1e5));
  command.add_option("--buffer-alpha", a.buffer_alpha, "a queue may hold so many times what is free of it")
      ->check(CLI::Range(0.001, 1024.0))
      ->capture_default_str();
  command.add_flag("--pfc", a.pfc, "switches stop who sends rather than refuse, per class");
  command.add_flag("--go-back-n", a.go_back_n,
                   "what a switch refuses makes everything behind it be sent again, as RoCE's connections do");
  command
      .add_option("--ecn", a.ecn,
                  "switches mark beyond K_min,K_max (KiB) with at most P_max, for example 100,400,0.1, and hosts react "
                  "by DCQCN")
      ->delimiter(',');
  command
      .add_option("--foreign-load", a.foreign_load,
                  "share of every host's link that others use, in bursts of 1 MiB in the least urgent class")
      ->check(CLI::Range(0.0, 0.9));
}

void add_assumptions(CLI::App& command, PlanArguments& a) {
  command.add_option("--host-latency-us", a.host_latency_us, "from an event on a host until its daemon acts on it")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  command
      .add_option("--sum-gbytes-per-second", a.sum_gbytes,
                  "of what a host's thread for arithmetic reads: of its ranks, and of its peers")
      ->check(CLI::Range(0.001, 1e5))
      ->capture_default_str();
  command.add_option("--goodput-share", a.assume.goodput, "of a link's rate, what packet headers leave")
      ->check(CLI::Range(0.01, 1.0))
      ->capture_default_str();
  command
      .add_option("--overhead-share", a.assume.overhead_share, "framework and stragglers, as a share of compute time")
      ->check(CLI::Range(0.0, 10.0))
      ->capture_default_str();
  command
      .add_option("--overhead-seconds", a.assume.overhead_s,
                  "the same per iteration, fixed (for example a scheduler's)")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
}

}  // namespace

void add_plan_command(CLI::App& app, Invocation& chosen) {
  auto arguments = std::make_shared<PlanArguments>();
  PlanArguments& a = *arguments;
  CLI::App* command = app.add_subcommand("plan", "What priorities would gain for a model on a fabric, by simulation");
  command->footer(kExamples);
  command
      ->add_option(
          "--model", a.model,
          "a model that the planner knows (an unknown one is answered by the list), or the file of a traced graph")
      ->required();
  command->add_option("--batch", a.batch, "samples per rank and iteration")->check(CLI::Range(1.0, 1e9));
  command
      ->add_option("--gpu-images-per-second", a.rate,
                   "samples per second of one rank alone; a graph's times are scaled to it")
      ->check(CLI::Range(1e-6, 1e12));
  command->add_option("--layer-times", a.layer_times, "JSON with forward and backward seconds of each layer, instead");
  command->add_option("--hosts", a.hosts, "hosts around one switch")->check(CLI::Range(2, 4096));
  command
      ->add_option("--ranks-per-host", a.ranks_per_host,
                   "ranks of a host, whose gradients are summed before they leave it")
      ->check(CLI::Range(1, 1024));
  command->add_option("--gbps", a.gbps, "rate of a host's link, Gbit/s")->check(CLI::Range(0.001, 100000.0));
  command->add_option("--fabric", a.fabric, "fabric.yaml with hosts, switches and links, instead");
  command->add_option("--network-model", a.network_model,
                      "a report of tensorlane calibrate, for the rate and latency of the hosts' links");
  command
      ->add_option(
          "--pattern", a.pattern,
          "ps, ring, halving-doubling, tree, or auto: the fastest for each variable or batch by the cost model")
      ->check(CLI::IsMember({"ps", "ring", "halving-doubling", "tree", "auto"}))
      ->capture_default_str();
  command
      ->add_option(
          "--exchange", a.exchange,
          "push-pull: a step begins by pulling what servers have updated (default of ps); allreduce: results come "
          "back as soon as they are summed")
      ->check(CLI::IsMember({"push-pull", "allreduce"}));
  command
      ->add_option("--jobs", a.jobs,
                   "jobs like this one that share the hosts and the fabric; several numbers are planned one after the "
                   "other (default: 1,2; 1 with --only)")
      ->delimiter(',')
      ->check(CLI::Range(1, 8));
  command->add_option("--most-classes", a.most_classes, "network priority is tried with 2 to this many classes")
      ->check(CLI::Range(2, 8))
      ->capture_default_str();
  command
      ->add_option("--only", a.only,
                   "simulate this policy alone (network with two classes of as many bytes): for many hosts")
      ->check(CLI::IsMember({"vanilla", "sliced", "endhost", "network"}));
  command->add_option("--thresholds", a.thresholds, "of --only network, for example 0.7,0.3 for three classes")
      ->delimiter(',')
      ->check(CLI::Range(0.0, 1.0));
  command
      ->add_option("--batch-mib", a.batch_mib,
                   "neighbouring variables travel together in batches of at most this; 0: each by itself")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  command->add_option("--iterations", a.assume.iterations, "simulated and measured, after one more")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  add_assumptions(*command, a);
  add_congestion(*command, a);
  command->add_option("--json", a.json_file, "writes the report to this file");
  command->add_option("--chart", a.chart, "writes a chart of the policies to this SVG file");
  command->callback([&chosen, arguments] { chosen.run = [arguments] { return plan(*arguments); }; });
}

}  // namespace tensorlane::cli
