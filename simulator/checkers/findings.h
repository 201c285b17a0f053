// What the checkers found. The first finding ends the run: what follows a broken invariant proves nothing.
#pragma once

#include <fmt/format.h>

#include <optional>
#include <string>
#include <utility>

namespace tensorlane::simulator {

struct Finding {
  std::string checker;  // "sum", "delivery", "order", "bounds", "memory", "stale", "progress", "abort", "protocol",
                        // "limits", "admission", "choice", "credits", "hostile", "messages"
  std::string message;
};

class Findings {
 public:
  template <typename... Args>
  void fail(const char* checker, fmt::format_string<Args...> format, Args&&... args) {
    if (!first_) first_ = Finding{checker, fmt::format(format, std::forward<Args>(args)...)};
  }
  bool any() const { return first_.has_value(); }
  const std::optional<Finding>& first() const { return first_; }

 private:
  std::optional<Finding> first_;
};

}  // namespace tensorlane::simulator
