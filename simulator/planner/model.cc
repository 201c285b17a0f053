#include "simulator/planner/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>

#include "common/json/json.h"
#include "simulator/planner/model_texts.h"

namespace tensorlane::simulator {
namespace {

using nlohmann::json;

// A backward pass multiplies for the gradients of inputs and of weights: twice a forward pass.
constexpr double kForwardShare = 1.0 / 3;

std::string plain(std::string_view name) {
  std::string text;
  for (const char c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0)
      text += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return text;
}

Model parsed(const ModelText& text) {
  const json document = json::parse(text.json);
  Model model{document["name"], document["source"], {}};
  for (const json& layer : document["layers"]) {
    ModelLayer one{layer["name"], layer["macs"], {}};
    for (const json& variable : layer["variables"]) one.variables.push_back({variable[0], variable[1]});
    model.layers.push_back(std::move(one));
  }
  return model;
}

Duration from_seconds(double seconds) {
  return Duration(std::llround(seconds * 1e9));
}

}  // namespace

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const ModelText& text : model_texts()) names.emplace_back(text.name);
  return names;
}

Result<Model> find_model(std::string_view name) {
  for (const ModelText& text : model_texts()) {
    if (plain(text.name) == plain(name)) return parsed(text);
  }
  std::string known;
  for (const std::string& one : model_names()) known += (known.empty() ? "" : ", ") + one;
  return Status(Code::kNotFound, fmt::format("model '{}' is not known", name), "--model", "use one of " + known);
}

Workload workload_of(const Model& model, double batch, double samples_per_second) {
  double all = 0;
  for (const ModelLayer& layer : model.layers) all += layer.macs;
  const double iteration = batch / samples_per_second;
  Workload w;
  for (const ModelLayer& layer : model.layers) {
    const double share = iteration * layer.macs / all;
    w.layers.push_back(
        {layer.name, from_seconds(share * kForwardShare), from_seconds(share * (1 - kForwardShare)), layer.variables});
  }
  return w;
}

Result<Workload> workload_of(const Model& model, const std::string& layer_times, const std::string& path) {
  return with_layer_times(workload_of(model, 1, 1), model.name, layer_times, path);
}

Result<Workload> with_layer_times(Workload w, const std::string& model, const std::string& layer_times,
                                  const std::string& path) {
  const auto invalid = [&](const std::string& what) {
    return Status(
        Code::kInvalidArgument, what, path,
        R"(write {"layers": [{"name": "conv1", "forward_s": 0.001, "backward_s": 0.002}, ...]}, every layer once)");
  };
  const json document = json::parse(layer_times, nullptr, false);
  if (!document.is_object() || !document.contains("layers") || !document["layers"].is_array())
    return invalid("there is no list 'layers'");
  std::map<std::string, std::pair<double, double>> times;
  for (const json& layer : document["layers"]) {
    const auto number = [&](const char* key) {
      return layer.is_object() && layer.contains(key) && layer[key].is_number() ? layer[key].get<double>() : -1;
    };
    const bool named = layer.is_object() && layer.contains("name") && layer["name"].is_string();
    if (!named || number("forward_s") < 0 || number("backward_s") < 0 ||
        number("forward_s") + number("backward_s") > 1e6)
      return invalid(fmt::format("layer {} lacks a name or its times, in seconds", times.size() + 1));
    if (!times.emplace(layer["name"], std::pair(number("forward_s"), number("backward_s"))).second)
      return invalid(fmt::format("layer '{}' stands there twice", layer["name"].get<std::string>()));
  }
  for (Layer& layer : w.layers) {
    const auto found = times.find(layer.name);
    if (found == times.end()) return invalid(fmt::format("layer '{}' of model {} is missing", layer.name, model));
    layer.forward = from_seconds(found->second.first);
    layer.backward = from_seconds(found->second.second);
    times.erase(found);
  }
  if (!times.empty()) return invalid(fmt::format("model {} has no layer '{}'", model, times.begin()->first));
  if (w.compute().value == 0) return invalid("all times are 0");
  return w;
}

}  // namespace tensorlane::simulator
