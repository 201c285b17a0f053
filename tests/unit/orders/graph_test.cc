#include "simulator/orders/graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "graphs.h"

namespace tensorlane::orders {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(Graph, KeepsWhatItWasBuiltFrom) {
  const auto graph = Graph::build({compute("c", 3, {"b", "a"}), recv("a", 1), compute("b", 2, {"a"})});
  ASSERT_TRUE(graph.ok()) << graph.status().to_string();
  ASSERT_EQ(graph->size(), 3u);
  const Operation c(0), a(1), b(2);
  EXPECT_EQ(graph->name(c), "c");
  EXPECT_EQ(graph->kind(a), Kind::kRecv);
  EXPECT_EQ(graph->kind(b), Kind::kCompute);
  EXPECT_EQ(graph->time(c), Duration(3));
  EXPECT_EQ(graph->bytes(a), Bytes(8));
  EXPECT_THAT(graph->resources(), ElementsAre("gpu", "network"));
  EXPECT_EQ(graph->resource(a), Resource(1));
  EXPECT_EQ(graph->resource(b), Resource(0));
  EXPECT_THAT(graph->inputs(c), ElementsAre(b, a));
  EXPECT_THAT(graph->inputs(a), ElementsAre());
  EXPECT_THAT(graph->outputs(a), ElementsAre(c, b));
  EXPECT_THAT(graph->topological(), ElementsAre(a, b, c));
  EXPECT_THAT(graph->of_kind(Kind::kCompute), ElementsAre(c, b));
}

TEST(Graph, OrdersTopologicallyAndOtherwiseAsListed) {
  const auto graph = Graph::build({compute("z", 1, {}), compute("y", 1, {"x"}), compute("x", 1, {}), recv("a", 1)});
  ASSERT_TRUE(graph.ok());
  EXPECT_THAT(names(*graph, graph->topological()), ElementsAre("z", "x", "y", "a"));
}

TEST(Graph, AddsDependencies) {
  const auto graph = Graph::build({compute("a", 1, {}), compute("b", 1, {}), compute("c", 1, {"a"})});
  ASSERT_TRUE(graph.ok());
  const std::vector<Dependency> more{{Operation(2), Operation(1)}};
  const auto ordered = graph->with(more);
  ASSERT_TRUE(ordered.ok());
  EXPECT_THAT(names(*ordered, ordered->topological()), ElementsAre("a", "c", "b"));
  EXPECT_THAT(names(*graph, graph->topological()), ElementsAre("a", "b", "c"));
  const std::vector<Dependency> circle{{Operation(2), Operation(0)}};
  EXPECT_EQ(graph->with(circle).status().code(), Code::kInvalidArgument);
}

void expect_refused(std::vector<Description> operations, const std::string& what, const std::string& where) {
  const auto graph = Graph::build(std::move(operations));
  ASSERT_FALSE(graph.ok()) << what;
  EXPECT_EQ(graph.status().code(), Code::kInvalidArgument);
  EXPECT_THAT(graph.status().what(), HasSubstr(what));
  EXPECT_THAT(graph.status().where(), HasSubstr(where));
  EXPECT_FALSE(graph.status().fix().empty());
}

TEST(Graph, RefusesWhatIsNoGraph) {
  expect_refused({compute("a", 1, {}), compute("", 1, {})}, "has no name", "operation 1");
  expect_refused({{"a", Kind::kSend, "", Duration(1), Bytes(0), {}}}, "has no resource", "'a'");
  expect_refused({compute("a", -1, {})}, "negative", "'a'");
  expect_refused({compute("a", 1, {}), recv("b", 1), recv("a", 1)}, "two operations have one name", "'a'");
  expect_refused({compute("a", 1, {"gone"})}, "'gone' is no operation", "'a'");
  expect_refused({recv("a", Graph::kLongest.value), recv("b", 1)}, "more than 1e9 s", "'b'");
}

TEST(Graph, NamesTheOperationsOfACycleOnly) {
  expect_refused({compute("in", 1, {}), compute("a", 1, {"c", "in"}), compute("b", 1, {"a"}), compute("c", 1, {"b"}),
                  compute("out", 1, {"c"})},
                 "wait for each other", "'a' -> 'c' -> 'b' -> 'a'");
  expect_refused({compute("self", 1, {"self"})}, "wait for each other", "'self' -> 'self'");
  // What comes after a cycle is no part of it.
  expect_refused({compute("tail", 1, {"x"}), compute("x", 1, {"y"}), compute("y", 1, {"x"})}, "wait for each other",
                 "'x' -> 'y' -> 'x'");
}

TEST(Graph, AMillionOperationsAreFast) {
  constexpr std::size_t kOperations = 1'000'000;
  std::vector<Description> operations;
  operations.reserve(kOperations);
  for (std::size_t i = 0; i < kOperations; ++i) {
    Description op{"operation/" + std::to_string(i), Kind::kCompute, "gpu", microseconds(1), Bytes(0), {}};
    if (i > 0) op.inputs.push_back("operation/" + std::to_string(i - 1));
    if (i > 1000) op.inputs.push_back("operation/" + std::to_string(i - 1000));
    operations.push_back(std::move(op));
  }
  const auto start = std::chrono::steady_clock::now();
  const auto graph = Graph::build(std::move(operations));
  const double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  ASSERT_TRUE(graph.ok()) << graph.status().to_string();
  EXPECT_EQ(graph->topological().back(), Operation(kOperations - 1));
  // Half a second here; a sanitizer on a busy machine takes twenty times that. A quadratic check would take hours.
  EXPECT_LT(took, 30);
}

}  // namespace
}  // namespace tensorlane::orders
