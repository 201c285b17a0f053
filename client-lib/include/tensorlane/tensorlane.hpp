// tensorlane.hpp: tensorlane.h with RAII and exceptions for C++ programs. Header only; the C ABI is all that crosses
// the library's border.
//
//   tensorlane::Session session;                       // configuration from the environment
//   auto x = session.allocate<float>(1024);            // shared memory
//   session.allreduce("x", x.data(), x.data(), x.size()).wait();
#ifndef TENSORLANE_HPP
#define TENSORLANE_HPP

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tensorlane/tensorlane.h"

namespace tensorlane {

// A call of the C interface failed; what() is tl_last_error().
class Error : public std::runtime_error {
 public:
  explicit Error(tl_status_t status) : std::runtime_error(tl_last_error()), status_(status) {}
  tl_status_t status() const noexcept { return status_; }

 private:
  tl_status_t status_;
};

inline void check(tl_status_t status) {
  if (status != TL_OK) throw Error(status);
}

// The dtype of an element type: float, double and the integers. 16-bit types have no C++ type of their own yet: pass a
// tl_dtype_t.
template <typename T>
struct DtypeOf;
template <>
struct DtypeOf<float> : std::integral_constant<tl_dtype_t, TL_FLOAT32> {};
template <>
struct DtypeOf<double> : std::integral_constant<tl_dtype_t, TL_FLOAT64> {};
template <>
struct DtypeOf<std::int8_t> : std::integral_constant<tl_dtype_t, TL_INT8> {};
template <>
struct DtypeOf<std::uint8_t> : std::integral_constant<tl_dtype_t, TL_UINT8> {};
template <>
struct DtypeOf<std::int32_t> : std::integral_constant<tl_dtype_t, TL_INT32> {};
template <>
struct DtypeOf<std::int64_t> : std::integral_constant<tl_dtype_t, TL_INT64> {};

// One operation under way. Its destructor waits, since the buffers belong to tensorlane until it is done; an error then
// is lost, so wait().
class Request {
 public:
  explicit Request(tl_request_t* request) noexcept : request_(request) {}
  Request(Request&& other) noexcept : request_(std::exchange(other.request_, nullptr)) {}
  Request& operator=(Request&& other) noexcept {
    if (this != &other) {
      finish();
      request_ = std::exchange(other.request_, nullptr);
    }
    return *this;
  }
  ~Request() { finish(); }

  // True when it is done. Throws Error when it failed.
  bool test() {
    if (request_ == nullptr) return true;
    const tl_status_t status = tl_test(request_);
    if (status == TL_IN_PROGRESS) return false;
    request_ = nullptr;
    check(status);
    return true;
  }
  // Throws Error when it failed or, leaving it under way, timed out. A negative time-out waits as long as the job
  // lives.
  void wait(double timeout_seconds = -1) {
    if (request_ == nullptr) return;
    const tl_status_t status = tl_wait(request_, timeout_seconds);
    if (status != TL_ERROR_TIMED_OUT || timeout_seconds < 0) request_ = nullptr;
    check(status);
  }
  // Of GPU memory: `stream` waits in place of this thread (tl_stream_wait). Throws Error.
  void wait_on(void* stream) { check(tl_stream_wait(&request_, 1, stream)); }
  // Gives the request away, e.g. to tl_set_callback().
  tl_request_t* release() noexcept { return std::exchange(request_, nullptr); }

 private:
  void finish() noexcept {
    if (request_ != nullptr) (void)tl_wait(std::exchange(request_, nullptr), -1);
  }
  tl_request_t* request_;
};

// A registered tensor; belongs to its session.
class Tensor {
 public:
  explicit Tensor(tl_tensor_t* tensor) noexcept : tensor_(tensor) {}
  void* buffer() const noexcept { return tl_tensor_buffer(tensor_); }
  Request post() {
    tl_request_t* request = nullptr;
    check(tl_post(tensor_, &request));
    return Request(request);
  }

  tl_tensor_t* get() const noexcept { return tensor_; }

 private:
  tl_tensor_t* tensor_;
};

// See tl_post_many(), and of GPU memory tl_post_on().
inline std::vector<Request> post_many(std::span<const Tensor> tensors, void* stream = nullptr) {
  std::vector<tl_tensor_t*> handles;
  for (const Tensor& tensor : tensors) handles.push_back(tensor.get());
  std::vector<tl_request_t*> requests(handles.size());
  check(tl_post_on(handles.data(), handles.size(), stream, requests.data()));
  return std::vector<Request>(requests.begin(), requests.end());
}

// One rank of one job. Not copied; outlives its tensors and requests.
class Session {
 public:
  explicit Session(const tl_config_t& config = tl_config_t TL_CONFIG_INIT) { check(tl_init(&config, &context_)); }
  Session(Session&& other) noexcept : context_(std::exchange(other.context_, nullptr)) {}
  Session& operator=(Session&&) = delete;
  ~Session() {
    if (context_ != nullptr) (void)tl_finalize(context_);
  }
  // Leaves the job; throws Error when that was not in peace.
  void finalize() { check(tl_finalize(std::exchange(context_, nullptr))); }

  tl_context_t* get() const noexcept { return context_; }
  int rank() const noexcept { return tl_rank(context_); }
  int size() const noexcept { return tl_size(context_); }

  // Shared memory, zeroed; the session frees it.
  template <typename T>
  std::span<T> allocate(std::size_t count) {
    void* memory = nullptr;
    check(tl_alloc(context_, count * sizeof(T), &memory));
    return {static_cast<T*>(memory), count};
  }
  void free(void* memory) { check(tl_free(context_, memory)); }

  std::vector<Tensor> register_group(const std::string& group, std::span<const tl_tensor_desc_t> descs) {
    std::vector<tl_tensor_t*> handles(descs.size());
    check(tl_register(context_, group.c_str(), descs.data(), descs.size(), handles.data()));
    return std::vector<Tensor>(handles.begin(), handles.end());
  }

  // See tl_unregister(): tensors of the group are not to be used any more.
  void unregister_group(const std::string& group) { check(tl_unregister(context_, group.c_str())); }

  template <typename T>
  Request allreduce(const std::string& name, const T* in, T* out, std::uint64_t count, tl_op_t op = TL_SUM,
                    const tl_options_t* options = nullptr) {
    tl_request_t* request = nullptr;
    check(tl_allreduce(context_, name.c_str(), in, out, count, DtypeOf<T>::value, op, options, &request));
    return Request(request);
  }
  template <typename T>
  Request broadcast(const std::string& name, T* buffer, std::uint64_t count, int root,
                    const tl_options_t* options = nullptr) {
    tl_request_t* request = nullptr;
    check(tl_broadcast(context_, name.c_str(), buffer, count, DtypeOf<T>::value, root, options, &request));
    return Request(request);
  }
  template <typename T>
  Request allgather(const std::string& name, const T* in, T* out, std::uint64_t count,
                    const tl_options_t* options = nullptr) {
    tl_request_t* request = nullptr;
    check(tl_allgather(context_, name.c_str(), in, out, count, DtypeOf<T>::value, options, &request));
    return Request(request);
  }
  // See tl_reducescatter().
  template <typename T>
  Request reducescatter(const std::string& name, const T* in, T* out, std::uint64_t rows, std::uint64_t row,
                        tl_op_t op = TL_SUM, const tl_options_t* options = nullptr) {
    tl_request_t* request = nullptr;
    check(tl_reducescatter(context_, name.c_str(), in, out, rows, row, DtypeOf<T>::value, op, options, &request));
    return Request(request);
  }
  // See tl_push() and tl_pull().
  template <typename T>
  Request push(const std::string& key, const T* in, std::uint64_t count, tl_op_t op = TL_SUM,
               const tl_options_t* options = nullptr) {
    tl_request_t* request = nullptr;
    check(tl_push(context_, key.c_str(), in, count, DtypeOf<T>::value, op, options, &request));
    return Request(request);
  }
  template <typename T>
  Request pull(const std::string& key, T* out, std::uint64_t count, const tl_options_t* options = nullptr) {
    tl_request_t* request = nullptr;
    check(tl_pull(context_, key.c_str(), out, count, DtypeOf<T>::value, options, &request));
    return Request(request);
  }
  void barrier(double timeout_seconds = -1) { check(tl_barrier(context_, timeout_seconds)); }

 private:
  tl_context_t* context_ = nullptr;
};

}  // namespace tensorlane

#endif
