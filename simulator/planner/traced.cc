#include "simulator/planner/traced.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string_view>
#include <vector>

#include "simulator/orders/timetable.h"

namespace tensorlane::simulator {
namespace {

using orders::Graph;
using orders::Kind;
using orders::Operation;

constexpr std::string_view kRecv = "recv/", kSend = "send/";

// A parameter whose gradient is sent.
struct Parameter {
  std::string name;
  Bytes bytes;
  Operation first_use;
  Duration needed;  // when `first_use` starts
  Duration ready;   // when its gradient is there
};

Status invalid(const std::string& what, const std::string& where, const std::string& fix) {
  return {Code::kInvalidArgument, what, where, fix};
}

// The graph with transfers that take no time.
Result<Graph> without_network(const Graph& graph) {
  std::vector<orders::Description> operations;
  for (std::uint32_t i = 0; i < graph.size(); ++i) {
    const Operation op(i);
    orders::Description one{.name = graph.name(op),
                            .kind = graph.kind(op),
                            .resource = graph.resources()[graph.resource(op).value],
                            .time = graph.kind(op) == Kind::kCompute ? graph.time(op) : Duration(),
                            .bytes = graph.bytes(op)};
    for (const Operation input : graph.inputs(op)) one.inputs.push_back(graph.name(input));
    operations.push_back(std::move(one));
  }
  return Graph::build(std::move(operations));
}

using ByName = std::map<std::string_view, Operation>;

Result<ByName> transfers(const Graph& graph, Kind kind, std::string_view prefix, const std::string& where) {
  ByName found;
  for (const Operation op : graph.of_kind(kind)) {
    const std::string_view name = graph.name(op);
    if (!name.starts_with(prefix))
      return invalid(fmt::format("it cannot be told which parameter '{}' transfers", name), where,
                     fmt::format("call it '{}' and the parameter's name", prefix));
    found.emplace(name.substr(prefix.size()), op);
  }
  return found;
}

Result<Parameter> parameter_of(const Graph& graph, const orders::Timetable& times, Operation recv, Operation send,
                               const std::string& where) {
  const std::string& name = graph.name(recv);
  if (graph.bytes(recv).value == 0 || graph.bytes(recv) != graph.bytes(send))
    return invalid(fmt::format("'{}' and '{}' do not say how many bytes both carry", name, graph.name(send)), where,
                   "give both the same 'bytes', above 0");
  const std::span<const Operation> uses = graph.outputs(recv);
  if (uses.empty())
    return invalid(fmt::format("no operation waits for '{}'", name), where, "make it an input of what reads it");
  const Operation first =
      *std::ranges::min_element(uses, {}, [&](Operation op) { return std::pair(times.start[op.value], op.value); });
  return Parameter{name.substr(kRecv.size()), graph.bytes(recv), first, times.start[first.value],
                   times.start[send.value]};
}

// In the order in which they are needed. `without_gradient` counts the others.
Result<std::vector<Parameter>> parameters_of(const Graph& graph, const orders::Timetable& times,
                                             const std::string& where, std::size_t* without_gradient) {
  TL_ASSIGN_OR_RETURN(const ByName recvs, transfers(graph, Kind::kRecv, kRecv, where));
  TL_ASSIGN_OR_RETURN(const ByName sends, transfers(graph, Kind::kSend, kSend, where));
  for (const auto& [name, send] : sends) {
    if (!recvs.contains(name))
      return invalid(fmt::format("'{}' has no '{}{}'", graph.name(send), kRecv, name), where,
                     "add the operation that receives the parameter");
  }
  std::vector<Parameter> parameters;
  for (const Operation recv : graph.of_kind(Kind::kRecv)) {
    const auto send = sends.find(std::string_view(graph.name(recv)).substr(kRecv.size()));
    if (send == sends.end()) continue;
    TL_ASSIGN_OR_RETURN(Parameter one, parameter_of(graph, times, recv, send->second, where));
    parameters.push_back(std::move(one));
  }
  *without_gradient = recvs.size() - sends.size();
  if (parameters.empty()) return invalid("no gradient is sent", where, "trace a training iteration of the model");
  std::ranges::stable_sort(parameters, {}, [](const Parameter& p) { return std::pair(p.needed, p.first_use); });
  return parameters;
}

// A backward pass after the other, from `from` on; returns when the last one ends.
Duration set_backward(std::vector<Layer>* layers, const std::vector<Duration>& ready, Duration from) {
  for (std::size_t l = layers->size(); l-- > 0;) {
    const Duration end = std::max(from, ready[l]);
    (*layers)[l].backward = end - from;
    from = end;
  }
  return from;
}

}  // namespace

Result<TracedWorkload> workload_of(const Graph& graph, const std::string& where) {
  TL_ASSIGN_OR_RETURN(const Graph computed, without_network(graph));
  const orders::Timetable times = orders::timetable(computed, orders::Priorities(computed.size(), orders::kNoPriority));
  if (times.makespan.value == 0) return invalid("no operation takes time", where, "trace the model with its times");
  TracedWorkload traced;
  TL_ASSIGN_OR_RETURN(const std::vector<Parameter> parameters,
                      parameters_of(computed, times, where, &traced.without_gradient));

  std::vector<Layer>& layers = traced.workload.layers;
  std::vector<Duration> needed, ready;  // by layer
  std::vector<std::size_t> layer_of;    // by parameter
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    const Parameter& one = parameters[p];
    if (p == 0 || one.first_use != parameters[p - 1].first_use) {
      layers.push_back({.name = computed.name(one.first_use)});
      needed.push_back(one.needed);
      ready.push_back(one.ready);
    }
    ready.back() = std::max(ready.back(), one.ready);
    layers.back().variables.push_back({one.name, (one.bytes.value + sizeof(float) - 1) / sizeof(float)});
    layer_of.push_back(layers.size() - 1);
  }
  needed.push_back(times.end[parameters.back().first_use.value]);
  for (std::size_t l = 0; l < layers.size(); ++l) layers[l].forward = needed[l + 1] - needed[l];
  const Duration last = set_backward(&layers, ready, needed.back());

  std::vector<Duration> leaves(layers.size(), last);
  for (std::size_t l = 1; l < layers.size(); ++l) leaves[l] = leaves[l - 1] - layers[l - 1].backward;
  for (std::size_t p = 0; p < parameters.size(); ++p)
    traced.longest_delay = std::max(traced.longest_delay, leaves[layer_of[p]] - parameters[p].ready);
  if (needed.front().value > 0 || times.makespan > last)
    layers.insert(layers.begin(), {"(start)", needed.front(), times.makespan - last, {}});
  return traced;
}

Workload scaled_to(const Workload& workload, Duration compute) {
  const double factor = to_seconds(compute) / to_seconds(workload.compute());
  Workload scaled = workload;
  for (Layer& layer : scaled.layers) {
    for (Duration* time : {&layer.forward, &layer.backward})
      *time = Duration(std::llround(static_cast<double>(time->value) * factor));
  }
  return scaled;
}

}  // namespace tensorlane::simulator
