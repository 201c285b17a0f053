// The model files that the planner was built with.
#pragma once

#include <string_view>
#include <vector>

namespace tensorlane::simulator {

struct ModelText {
  std::string_view name, json;
};

const std::vector<ModelText>& model_texts();

}  // namespace tensorlane::simulator
