// Status and Result: how expected failures travel. No exception crosses the data path or the C ABI.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "common/base/assert.h"

namespace tensorlane {

// Stable across versions: these numbers are also the C ABI's tl_status_t and travel in the session protocol.
enum class Code : std::int32_t {
  kOk = 0,
  kInvalidArgument = 1,  // the caller's input is wrong; nothing happened
  kNotFound = 2,
  kAlreadyExists = 3,
  kPermissionDenied = 4,   // wrong user, wrong secret, wrong key
  kResourceExhausted = 5,  // a stated bound is reached (memory, descriptors, queue)
  kUnavailable = 6,        // a peer or the daemon cannot be reached
  kTimedOut = 7,
  kAborted = 8,   // the job was aborted; the message names the cause
  kMismatch = 9,  // ranks disagree about a tensor
  kVersionMismatch = 10,
  kCorrupt = 11,     // bytes that fail their checks
  kInProgress = 12,  // not an error: ask again
  kInternal = 13,
};

// "kTimedOut" -> "timed out". Never null.
const char* code_name(Code code);

// The outcome of something that can fail. The three texts make the one line that every command prints:
//   tensorlane: error: WHAT: WHERE: WHAT TO DO
// Cheap when ok: a null pointer's worth of state.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string what, std::string where = {}, std::string fix = {});

  static Status ok_status() { return {}; }

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& what() const { return what_; }
  const std::string& where() const { return where_; }
  const std::string& fix() const { return fix_; }

  // "WHAT: WHERE: WHAT TO DO", leaving out what is empty; "ok" when ok.
  std::string to_string() const;
  // "tensorlane: error: " + to_string(): the line for standard error.
  std::string error_line() const;

  bool operator==(const Status&) const = default;

 private:
  Code code_ = Code::kOk;
  std::string what_;
  std::string where_;
  std::string fix_;
};

// A T, or the Status that says why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}                                     // NOLINT: implicit by design
  Result(Status status) : status_(std::move(status)) { TL_ASSERT(!status_.ok()); }  // NOLINT: implicit by design

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() & {
    TL_ASSERT(ok());
    return *value_;
  }
  const T& value() const& {
    TL_ASSERT(ok());
    return *value_;
  }
  T&& value() && {
    TL_ASSERT(ok());
    return *std::move(value_);
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace tensorlane

// Returns the status of `expression` from the calling function unless it is ok.
#define TL_RETURN_IF_ERROR(expression)              \
  do {                                              \
    ::tensorlane::Status tl_status_ = (expression); \
    if (!tl_status_.ok()) return tl_status_;        \
  } while (false)

// TL_ASSIGN_OR_RETURN(auto x, f()): x = *f(), or returns its status.
#define TL_CONCAT_INNER(a, b) a##b
#define TL_CONCAT(a, b) TL_CONCAT_INNER(a, b)
// NOLINTBEGIN(bugprone-macro-parentheses): a declaration cannot stand in parentheses
#define TL_ASSIGN_OR_RETURN(declaration, expression)                                          \
  auto TL_CONCAT(tl_result_, __LINE__) = (expression);                                        \
  if (!TL_CONCAT(tl_result_, __LINE__).ok()) return TL_CONCAT(tl_result_, __LINE__).status(); \
  declaration = std::move(TL_CONCAT(tl_result_, __LINE__)).value()
// NOLINTEND(bugprone-macro-parentheses)
