// The models: published totals, and times.
#include "simulator/planner/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace tensorlane::simulator {
namespace {

using testing::HasSubstr;

struct Published {
  const char* name;
  std::size_t variables;  // 0: not published
  double mebibytes;
};

// TicTac, table 1.
TEST(Models, HaveTheSizesOfTicTacsTable) {
  const Published table[] = {{"alexnet-v2", 16, 191.89},   {"inception-v1", 116, 25.24},
                             {"inception-v2", 141, 42.64}, {"inception-v3", 196, 103.54},
                             {"resnet-50-v1", 108, 97.39}, {"resnet-101-v1", 210, 169.74},
                             {"resnet-50-v2", 125, 97.45}, {"resnet-101-v2", 244, 169.86},
                             {"vgg-16", 32, 527.79},       {"vgg-19", 38, 548.05}};
  for (const Published& row : table) {
    const Result<Model> model = find_model(row.name);
    ASSERT_TRUE(model.ok()) << row.name;
    std::uint64_t elements = 0;
    std::size_t variables = 0;
    for (const ModelLayer& layer : model->layers) {
      for (const Variable& v : layer.variables) elements += v.elements;
      variables += layer.variables.size();
    }
    EXPECT_EQ(variables, row.variables) << row.name;
    EXPECT_NEAR(static_cast<double>(elements) * 4 / (1 << 20), row.mebibytes, 0.005) << row.name;
  }
}

std::uint64_t elements(const char* name) {
  return workload_of(*find_model(name), 1, 1).elements();
}

TEST(Models, HaveTheirPublishedNumberOfParameters) {
  EXPECT_EQ(elements("vgg19"), 143'667'240u);
  EXPECT_EQ(elements("vgg16"), 138'357'544u);
  EXPECT_EQ(elements("yolo"), 271'703'550u);
  EXPECT_EQ(elements("gpt2"), 124'439'808u);
  EXPECT_EQ(elements("alexnet"), 62'378'344u);
}

// VGG-19's forward pass is 19.6 billion multiply-adds (Simonyan and Zisserman; torchvision says 19.63), ResNet-50's
// with Slim's strides 3.5 to 4.1.
TEST(Models, HaveTheirMultiplyAdds) {
  const auto macs = [](const char* name) {
    double sum = 0;
    const Result<Model> model = find_model(name);
    for (const ModelLayer& layer : model->layers) sum += layer.macs;
    return sum / 1e9;
  };
  EXPECT_NEAR(macs("vgg19"), 19.63, 0.05);
  EXPECT_NEAR(macs("vgg16"), 15.47, 0.05);
  EXPECT_NEAR(macs("resnet-50-v1"), 3.8, 0.4);
  EXPECT_NEAR(macs("inception-v3"), 5.8, 0.4);
}

TEST(Models, UnknownOneIsAnsweredByTheList) {
  const Result<Model> model = find_model("vgg-20");
  ASSERT_FALSE(model.ok());
  EXPECT_THAT(model.status().to_string(), HasSubstr("vgg-16, vgg-19"));
}

TEST(Models, TimesAddUpToTheMeasuredSpeed) {
  const Workload w = workload_of(*find_model("vgg-19"), 64, 36.9);
  EXPECT_NEAR(to_seconds(w.compute()), 64 / 36.9, 1e-6);
  EXPECT_NEAR(to_seconds(w.layers[5].backward), 2 * to_seconds(w.layers[5].forward), 1e-8);
}

TEST(LayerTimes, AreTakenByName) {
  const Model model{"m", "", {{"a", 1, {{"w", 4}}}, {"b", 1, {}}}};
  const Result<Workload> w = workload_of(
      model,
      R"({"layers": [{"name": "b", "forward_s": 0.5, "backward_s": 1}, {"name": "a", "forward_s": 1, "backward_s": 2}]})",
      "f");
  ASSERT_TRUE(w.ok()) << w.status().to_string();
  EXPECT_EQ(w->layers[0].forward, seconds(1));
  EXPECT_EQ(w->layers[1].forward, milliseconds(500));
}

TEST(LayerTimes, SayWhatIsWrong) {
  const Model model{"m", "", {{"a", 1, {{"w", 4}}}}};
  const auto error = [&](const char* text) { return workload_of(model, text, "times.json").status().to_string(); };
  EXPECT_THAT(error("nonsense"), HasSubstr("no list 'layers'"));
  EXPECT_THAT(error(R"({"layers": []})"), HasSubstr("layer 'a' of model m is missing"));
  EXPECT_THAT(error(R"({"layers": [{"name": "a", "forward_s": -1, "backward_s": 1}]})"),
              HasSubstr("lacks a name or its times"));
  EXPECT_THAT(
      error(
          R"({"layers": [{"name": "a", "forward_s": 1, "backward_s": 1}, {"name": "b", "forward_s": 1, "backward_s": 1}]})"),
      HasSubstr("has no layer 'b'"));
  EXPECT_THAT(error(R"({"layers": [{"name": "a", "forward_s": 0, "backward_s": 0}]})"), HasSubstr("all times are 0"));
}

}  // namespace
}  // namespace tensorlane::simulator
