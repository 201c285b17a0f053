// Computation graphs in JSON, the format of client-lib/python/tensorlane/graph.schema.json.
#pragma once

#include <string>
#include <string_view>

#include "common/base/status.h"
#include "simulator/orders/graph.h"

namespace tensorlane::orders {

// The graph in `text`. `where` names the text in errors. kCorrupt if it is no JSON; kInvalidArgument if it is not of
// the format, or no graph (Graph::build()); kVersionMismatch for another version of the format.
Result<Graph> parse_graph(std::string_view text, const std::string& where);

// The graph in a file; "-" is standard input. As parse_graph(); kNotFound if the file cannot be read.
Result<Graph> load_graph(const std::string& path);

}  // namespace tensorlane::orders
