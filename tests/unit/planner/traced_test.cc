// A traced graph as a chain of layers: what each lasts, and what cannot be planned.
#include "simulator/planner/traced.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tensorlane::simulator {
namespace {

using orders::Description;
using orders::Kind;
using testing::HasSubstr;

Description recv(const std::string& name, std::uint64_t bytes) {
  return {"recv/" + name, Kind::kRecv, "downlink", seconds(1), Bytes(bytes), {}};
}
Description send(const std::string& name, std::uint64_t bytes, std::vector<std::string> inputs) {
  return {"send/" + name, Kind::kSend, "uplink", seconds(1), Bytes(bytes), std::move(inputs)};
}
Description compute(const std::string& name, std::int64_t ms, std::vector<std::string> inputs,
                    const std::string& resource = "gpu") {
  return {name, Kind::kCompute, resource, milliseconds(ms), {}, std::move(inputs)};
}

// Two layers. The second one's gradient is there after 2 + 3 + 1 + 4 ms, the first one's 5 ms later, and something is
// computed before and after all of that.
std::vector<Description> two_layers() {
  return {recv("a.weight", 400),
          recv("a.bias", 6),
          recv("b", 4000),
          recv("unused", 8),
          compute("read", 7, {}),
          compute("f_a", 2, {"recv/a.weight", "recv/a.bias", "read"}),
          compute("f_b", 3, {"recv/b", "f_a"}),
          compute("loss", 1, {"f_b"}),
          compute("b_b", 4, {"loss", "recv/b"}),
          compute("b_a", 5, {"b_b"}),
          compute("after", 6, {"b_a"}),
          send("b", 4000, {"b_b"}),
          send("a.weight", 400, {"b_a"}),
          send("a.bias", 6, {"b_a"})};
}

TracedWorkload traced(std::vector<Description> operations) {
  const Result<orders::Graph> graph = orders::Graph::build(std::move(operations));
  EXPECT_TRUE(graph.ok()) << graph.status().to_string();
  const Result<TracedWorkload> result = workload_of(*graph, "g.json");
  EXPECT_TRUE(result.ok()) << result.status().to_string();
  return result.ok() ? *result : TracedWorkload{};
}

void expect_layer(const Layer& layer, const std::string& name, std::int64_t forward_ms, std::int64_t backward_ms,
                  std::size_t variables) {
  EXPECT_EQ(layer.name, name);
  EXPECT_EQ(layer.forward, milliseconds(forward_ms)) << name;
  EXPECT_EQ(layer.backward, milliseconds(backward_ms)) << name;
  EXPECT_EQ(layer.variables.size(), variables) << name;
}

TEST(TracedGraph, IsLayersInTheOrderOfFirstUse) {
  const TracedWorkload t = traced(two_layers());
  const std::vector<Layer>& layers = t.workload.layers;
  ASSERT_EQ(layers.size(), 3u);
  expect_layer(layers[0], "(start)", 7, 6, 0);
  expect_layer(layers[1], "f_a", 2, 5, 2);
  expect_layer(layers[2], "f_b", 3, 5, 1);  // and the loss
  EXPECT_EQ(layers[1].variables[0].name, "a.weight");
  EXPECT_EQ(layers[1].variables[0].elements, 100u);
  EXPECT_EQ(layers[1].variables[1].elements, 2u) << "6 bytes need two floats";
  EXPECT_EQ(t.without_gradient, 1u) << "what is received and never sent";
  EXPECT_EQ(t.longest_delay.value, 0);
  EXPECT_EQ(t.workload.compute(), milliseconds(28));
}

TEST(TracedGraph, GradientsThatComeEarlyLeaveInReverseOrder) {
  // The first layer's gradient is there 4 ms before the second one's.
  std::vector<Description> operations = two_layers();
  operations[8].inputs = {"b_a"};
  operations[9].inputs = {"loss"};
  operations[10].inputs = {"b_b"};
  const TracedWorkload t = traced(operations);
  ASSERT_EQ(t.workload.layers.size(), 3u);
  expect_layer(t.workload.layers[2], "f_b", 3, 10, 1);
  expect_layer(t.workload.layers[1], "f_a", 2, 0, 2);
  EXPECT_EQ(t.longest_delay, milliseconds(4));
  EXPECT_EQ(t.workload.compute(), milliseconds(28));
}

TEST(TracedGraph, WhatIsComputedInParallelTakesTheLongerTime) {
  const TracedWorkload t = traced({recv("a", 4), compute("f", 2, {"recv/a"}), compute("b", 9, {"f"}),
                                   compute("log", 5, {"f"}, "cpu"), send("a", 4, {"b"})});
  ASSERT_EQ(t.workload.layers.size(), 1u);
  expect_layer(t.workload.layers[0], "f", 2, 9, 1);
}

TEST(TracedGraph, IsScaledToASpeed) {
  const Workload scaled = scaled_to(traced(two_layers()).workload, milliseconds(280));
  EXPECT_EQ(scaled.compute(), milliseconds(280));
  EXPECT_EQ(scaled.layers[2].forward, milliseconds(30));
}

TEST(TracedGraph, SaysWhatCannotBePlanned) {
  struct Case {
    std::vector<Description> operations;
    const char* message;
  };
  const std::vector<Case> cases = {
      {{recv("a", 4), compute("f", 1, {"recv/a"})}, "no gradient is sent: g.json: trace a training iteration"},
      {{recv("a", 4), compute("f", 0, {"recv/a"}), send("a", 4, {"f"})}, "no operation takes time"},
      {{recv("a", 4), compute("f", 1, {"recv/a"}), send("b", 4, {"f"})}, "'send/b' has no 'recv/b'"},
      {{recv("a", 4), compute("f", 1, {"recv/a"}), send("a", 8, {"f"})}, "do not say how many bytes both carry"},
      {{recv("a", 0), compute("f", 1, {"recv/a"}), send("a", 0, {"f"})}, "do not say how many bytes both carry"},
      {{recv("a", 4), compute("f", 1, {}), send("a", 4, {"f"})}, "no operation waits for 'recv/a'"},
      {{{"pull a", Kind::kRecv, "n", seconds(1), Bytes(4), {}}, compute("f", 1, {"pull a"})},
       "which parameter 'pull a' transfers: g.json: call it 'recv/' and the parameter's name"},
  };
  for (const Case& one : cases) {
    const Result<orders::Graph> graph = orders::Graph::build(one.operations);
    ASSERT_TRUE(graph.ok()) << graph.status().to_string();
    const Result<TracedWorkload> result = workload_of(*graph, "g.json");
    ASSERT_FALSE(result.ok()) << one.message;
    EXPECT_THAT(result.status().to_string(), HasSubstr(one.message));
  }
}

}  // namespace
}  // namespace tensorlane::simulator
