// The models that the planner knows, and how a measured speed becomes times per layer.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/base/units.h"
#include "simulator/planner/workload.h"

namespace tensorlane::simulator {

struct ModelLayer {
  std::string name;
  double macs = 0;  // multiply-adds of one sample's forward pass
  std::vector<Variable> variables;
};

struct Model {
  std::string name, source;
  std::vector<ModelLayer> layers;  // in the order of the forward pass
};

// In alphabetic order.
std::vector<std::string> model_names();
// "vgg19" and "VGG-19" name "vgg-19". kNotFound, listing the known ones.
Result<Model> find_model(std::string_view name);

// An iteration computes `batch` samples at `samples_per_second`: one third of it forward, two thirds backward (a
// backward pass multiplies twice), divided among layers by multiply-adds.
Workload workload_of(const Model& model, double batch, double samples_per_second);

// The same with times that were measured, see with_layer_times().
Result<Workload> workload_of(const Model& model, const std::string& layer_times, const std::string& path);

// The layers of `workload`, which is of the model called `model`, with times that were measured: JSON {"layers":
// [{"name", "forward_s", "backward_s"}, ...]}, every layer once. InvalidArgument, where = `path`.
Result<Workload> with_layer_times(Workload workload, const std::string& model, const std::string& layer_times,
                                  const std::string& path);

}  // namespace tensorlane::simulator
