#include "simulator/orders/graph_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace tensorlane::orders {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// TicTac, figure 1a.
constexpr const char* kFigure1a = R"({"version": 1, "about": {"source": "TicTac, figure 1a"}, "operations": [
  {"name": "recv1", "kind": "recv", "resource": "network", "seconds": 1.5e-3, "bytes": 4096, "inputs": []},
  {"name": "recv2", "kind": "recv", "resource": "network", "seconds": 2, "inputs": []},
  {"name": "op1", "kind": "compute", "resource": "gpu", "seconds": 1e-9, "inputs": ["recv1"]},
  {"name": "op2", "kind": "compute", "resource": "gpu", "seconds": 0, "inputs": ["op1", "recv2"]},
  {"name": "push", "kind": "send", "resource": "network", "seconds": 0.25, "inputs": ["op2"]}]})";

TEST(GraphFile, ReadsEveryMember) {
  const auto graph = parse_graph(kFigure1a, "figure1a.json");
  ASSERT_TRUE(graph.ok()) << graph.status().to_string();
  ASSERT_EQ(graph->size(), 5u);
  EXPECT_EQ(graph->name(Operation(0)), "recv1");
  EXPECT_EQ(graph->kind(Operation(0)), Kind::kRecv);
  EXPECT_EQ(graph->time(Operation(0)), microseconds(1500));
  EXPECT_EQ(graph->bytes(Operation(0)), Bytes(4096));
  EXPECT_EQ(graph->bytes(Operation(1)), Bytes(0));
  EXPECT_EQ(graph->time(Operation(1)), seconds(2));
  EXPECT_EQ(graph->time(Operation(2)), nanoseconds(1));
  EXPECT_EQ(graph->kind(Operation(2)), Kind::kCompute);
  EXPECT_EQ(graph->kind(Operation(4)), Kind::kSend);
  EXPECT_THAT(graph->resources(), ElementsAre("network", "gpu"));
  EXPECT_THAT(graph->inputs(Operation(3)), ElementsAre(Operation(2), Operation(1)));
}

std::string with_operation(const std::string& operation) {
  return R"({"version": 1, "operations": [{"name": "a", "kind": "recv", "resource": "network", "seconds": 1, "inputs": []}, )" +
         operation + "]}";
}

struct Bad {
  std::string text;
  Code code;
  std::string message;
};

TEST(GraphFile, SaysWhatIsWrongAndWhere) {
  const Bad bad[] = {
      {"{\"version\": 1", Code::kCorrupt, "no JSON"},
      {"", Code::kCorrupt, "no JSON"},
      {"[]", Code::kInvalidArgument, "no graph"},
      {"{\"operations\": []}", Code::kInvalidArgument, "'version' is missing"},
      {"{\"version\": 2, \"operations\": []}", Code::kVersionMismatch, "version 2"},
      {"{\"version\": 1}", Code::kInvalidArgument, "'operations' is missing"},
      {"{\"version\": 1, \"operations\": {}}", Code::kInvalidArgument, "'operations' is missing, or no array"},
      {"{\"version\": 1, \"operations\": [], \"nodes\": []}", Code::kInvalidArgument, "'nodes' is no member"},
      {with_operation("7"), Code::kInvalidArgument, "an operation is no object"},
      {with_operation("{}"), Code::kInvalidArgument, "'name' is missing, or no string: g.json: operations[1]"},
      {with_operation(R"({"name": "b", "kind": "magic", "resource": "gpu", "seconds": 1, "inputs": []})"),
       Code::kInvalidArgument, "the kind \"magic\" is unknown: g.json: operations[1] 'b'"},
      {with_operation(R"({"name": "b", "kind": "send", "resource": "gpu", "inputs": []})"), Code::kInvalidArgument,
       "'seconds' is missing, or no number: g.json: operations[1] 'b'"},
      {with_operation(R"({"name": "b", "kind": "send", "resource": "gpu", "seconds": -0.5, "inputs": []})"),
       Code::kInvalidArgument, "-0.5 seconds are no time"},
      {with_operation(R"({"name": "b", "kind": "send", "resource": "gpu", "seconds": 1e300, "inputs": []})"),
       Code::kInvalidArgument, "1e+300 seconds are no time"},
      {with_operation(R"({"name": "b", "kind": "send", "resource": "gpu", "seconds": 1, "bytes": -4, "inputs": []})"),
       Code::kInvalidArgument, "'bytes' is missing, or no non-negative integer"},
      {with_operation(R"({"name": "b", "kind": "send", "resource": "gpu", "seconds": 1})"), Code::kInvalidArgument,
       "'inputs' is missing, or no array"},
      {with_operation(R"({"name": "b", "kind": "send", "resource": "gpu", "seconds": 1, "inputs": [1]})"),
       Code::kInvalidArgument, "an input is no string"},
      {with_operation(R"({"name": "b", "kind": "send", "resource": "gpu", "seconds": 1, "inputs": [], "input": []})"),
       Code::kInvalidArgument, "'input' is no member of an operation"},
      {with_operation(R"({"name": "b", "kind": "send", "resource": "gpu", "seconds": 1, "inputs": ["c"]})"),
       Code::kInvalidArgument, "the input 'c' is no operation of the graph: g.json: operation 'b'"},
  };
  for (const Bad& b : bad) {
    const auto graph = parse_graph(b.text, "g.json");
    ASSERT_FALSE(graph.ok()) << b.text;
    EXPECT_EQ(graph.status().code(), b.code) << b.text;
    EXPECT_THAT(graph.status().to_string(), HasSubstr(b.message)) << b.text;
    EXPECT_THAT(graph.status().where(), HasSubstr("g.json")) << b.text;
  }
}

// Only the array at the top is the operations.
TEST(GraphFile, IgnoresOperationsInsideOfAbout) {
  const auto graph = parse_graph(
      R"({"about": {"operations": [{"name": 1}], "x": [{"y": []}]}, "version": 1, "operations": []})", "g.json");
  ASSERT_TRUE(graph.ok()) << graph.status().to_string();
  EXPECT_EQ(graph->size(), 0u);
}

TEST(GraphFile, AFileThatIsNotThere) {
  const auto graph = load_graph("/nonexistent/graph.json");
  ASSERT_FALSE(graph.ok());
  EXPECT_EQ(graph.status().code(), Code::kNotFound);
  EXPECT_THAT(graph.status().where(), HasSubstr("/nonexistent/graph.json"));
}

TEST(GraphFile, ManyOperations) {
  std::string text = R"({"version": 1, "operations": [)";
  for (int i = 0; i < 100'000; ++i) {
    text += i == 0 ? "" : ",";
    text += R"({"name": "o)" + std::to_string(i) +
            R"(", "kind": "compute", "resource": "gpu", "seconds": 1e-6, "inputs": [)" +
            (i == 0 ? "" : R"("o)" + std::to_string(i - 1) + "\"") + "]}";
  }
  const auto graph = parse_graph(text + "]}", "many");
  ASSERT_TRUE(graph.ok()) << graph.status().to_string();
  EXPECT_EQ(graph->size(), 100'000u);
}

}  // namespace
}  // namespace tensorlane::orders
