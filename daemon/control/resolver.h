// Names of hosts as numbers, asked for on a thread of its own: DNS may take seconds, in which control's thread would
// say no heartbeats.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

namespace tensorlane::control {

class Resolver {
 public:
  // `news` is called on some other thread whenever an answer has come.
  explicit Resolver(std::function<void()> news);
  // Does not wait for answers that are still to come; `news` is not called any more.
  ~Resolver();
  Resolver(const Resolver&) = delete;
  Resolver& operator=(const Resolver&) = delete;

  // An address as numbers: at once where it is numeric, else as last answered. Where nothing is known yet, or the
  // answer is more than ten seconds old, it is asked for; a name that does not resolve once a second for as long as
  // somebody calls.
  std::optional<std::string> find(const std::string& address);
  // What the resolver said last of a name that does not resolve; empty where it has said nothing.
  std::string why_not(const std::string& address) const;

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

}  // namespace tensorlane::control
