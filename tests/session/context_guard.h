// A context of the real client library for a test.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "tensorlane/tensorlane.h"

namespace tensorlane::test {

// Joins, with `alone` as the only rank of its host; left() says what tl_finalize said. The destructor finalizes.
class ClientContext {
 public:
  explicit ClientContext(const std::string& socket, const std::string& job = "job", int rank = 0, int world_size = 1,
                         double timeout = 10, bool alone = false) {
    tl_config_t config = TL_CONFIG_INIT;
    config.socket = socket.c_str();
    config.job = job.c_str();
    config.rank = rank;
    config.world_size = world_size;
    config.local_rank = alone ? 0 : rank;
    config.local_world_size = alone ? 1 : world_size;
    config.timeout_seconds = timeout;
    status_ = tl_init(&config, &context_);
    if (status_ != TL_OK) error_ = tl_last_error();
  }
  ~ClientContext() {
    if (context_ != nullptr) (void)tl_finalize(context_);
  }
  ClientContext(const ClientContext&) = delete;
  ClientContext& operator=(const ClientContext&) = delete;

  operator tl_context_t*() const { return context_; }  // NOLINT: implicit by design
  tl_status_t status() const { return status_; }
  const std::string& error() const { return error_; }
  tl_status_t leave() {
    tl_context_t* context = context_;
    context_ = nullptr;
    return tl_finalize(context);
  }
  float* floats(std::size_t count) const {
    void* memory = nullptr;
    EXPECT_EQ(tl_alloc(context_, count * sizeof(float), &memory), TL_OK) << tl_last_error();
    return static_cast<float*>(memory);
  }

 private:
  tl_context_t* context_ = nullptr;
  tl_status_t status_ = TL_OK;
  std::string error_;
};

inline tl_tensor_desc_t tensor_desc(const char* name, void* buffer, std::uint64_t count) {
  tl_tensor_desc_t desc = TL_TENSOR_INIT;
  desc.name = name;
  desc.buffer = buffer;
  desc.count = count;
  return desc;
}

inline std::string numbered(std::string prefix, int number) {
  prefix += std::to_string(number);
  return prefix;
}

// An allreduce of float32 in a group of its own.
inline tl_tensor_t* registered(tl_context_t* context, const char* name, float* buffer, std::uint64_t count) {
  const tl_tensor_desc_t desc = tensor_desc(name, buffer, count);
  tl_tensor_t* tensor = nullptr;
  EXPECT_EQ(tl_register(context, name, &desc, 1, &tensor), TL_OK) << tl_last_error();
  return tensor;
}

}  // namespace tensorlane::test
