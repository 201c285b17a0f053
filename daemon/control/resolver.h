// Names of hosts as numbers, asked for on threads of its own: DNS may take seconds, in which control's thread would say
// no heartbeats.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "common/base/status.h"
#include "common/fabric/fabric.h"

namespace tensorlane::control {

// One thread calls it.
class Resolver {
 public:
  // So many names are asked for at once; the others wait for their turn.
  static constexpr std::size_t kThreads = 8;
  // So many names are known. Of one more nothing is known until the answers of others are old.
  static constexpr std::size_t kMaxNames = std::size_t{1} << 16;
  // The address of a name as numbers. Called on several threads at once; may take seconds; may outlive the Resolver.
  using Ask = std::function<Result<std::string>(const std::string& name)>;

  // `news` is called on some other thread whenever an answer has come.
  explicit Resolver(std::function<void()> news, Ask ask = fabric::resolve_address);
  // Does not wait for answers that are still to come; `news` is not called any more.
  ~Resolver();
  Resolver(const Resolver&) = delete;
  Resolver& operator=(const Resolver&) = delete;

  // An address as numbers: at once where it is numeric, else as last answered. Where nothing is known yet, or the
  // answer is more than ten seconds old, it is asked for; a name that does not resolve once a second for as long as
  // somebody calls. Where the system gives no thread for it, the name is not known yet: a later call tries again.
  std::optional<std::string> find(const std::string& address);
  // What the resolver said last of a name that does not resolve; empty where it has said nothing.
  std::string why_not(const std::string& address) const;

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

}  // namespace tensorlane::control
