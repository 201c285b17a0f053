// Mistakes that a fabric file can hold, and the exact texts of their errors.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "common/fabric/fabric.h"

namespace tensorlane::fabric {
namespace {

struct Mistake {
  const char* name;
  std::string text;
  std::string error;
};

class FabricError : public ::testing::TestWithParam<Mistake> {};

TEST_P(FabricError, SaysWhatWhereAndWhatWasExpected) {
  const auto fabric = parse(GetParam().text, "fabric.yaml", Keys::kRequired);
  ASSERT_FALSE(fabric.ok());
  EXPECT_EQ(fabric.status().code(), Code::kInvalidArgument);
  EXPECT_EQ(fabric.status().to_string(), GetParam().error);
}

std::string case_name(const ::testing::TestParamInfo<Mistake>& info) {
  return info.param.name;
}

#define HOST "hosts: [{name: h, addresses: {tcp: 10.0.0.1}}]\n"

}  // namespace
}  // namespace tensorlane::fabric
