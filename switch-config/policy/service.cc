// How classes are served: numbers, order, shapers and weights.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "switch-config/policy/policy.h"

namespace tensorlane::switches {

namespace {

constexpr unsigned kDefaultQueue = 0;
constexpr unsigned kControlShaper = 5, kCnpShaper = 5, kDataShaper = 40;
constexpr unsigned kDefaultWeight = 30;
constexpr unsigned kLeastGuarantee = 10;  // percent of a port, of the default class
constexpr std::string_view kDefault = "default", kCnp = "cnp";

// Makes the service of a fabric, one rule after another.
class Policy {
 public:
  explicit Policy(const fabric::Fabric& fabric) : fabric_(fabric) {}

  Result<Service> make() {
    TL_RETURN_IF_ERROR(number_classes());
    TL_RETURN_IF_ERROR(number_cnp());
    TL_RETURN_IF_ERROR(shape());
    TL_RETURN_IF_ERROR(check_order());
    TL_RETURN_IF_ERROR(weigh());
    TL_RETURN_IF_ERROR(check_times());
    return service_;
  }

 private:
  const fabric::ClassService& options(std::string_view name) const {
    static const fabric::ClassService kNone;
    const auto found = fabric_.qos.services.find(name);
    return found == fabric_.qos.services.end() ? kNone : found->second;
  }

  Status error(std::string what, std::string fix, int line = 0) const {
    const int of_qos = std::max(fabric_.qos.line, 1);
    return Status(Code::kInvalidArgument, std::move(what),
                  fmt::format("{}:{}", fabric_.path, line == 0 ? of_qos : line), std::move(fix));
  }

  Status take(const fabric::TrafficClass& cls, bool strict) {
    if (cls.name == kDefault || cls.name == kCnp)
      return error(fmt::format("a class named '{}'", cls.name), "the switch tool uses this name; rename the class");
    if (cls.pcp == kDefaultQueue)
      return error(fmt::format("class '{}' has PCP 0", cls.name), "traffic of others has PCP 0; expected 1 to 7");
    Queue& queue = service_.queues[cls.pcp];
    queue = {.name = cls.name, .strict = strict, .lossless = cls.lossless, .dscp = cls.dscp};
    service_.queue_of_dscp[cls.dscp] = cls.pcp;
    service_.queue_of_pcp[cls.pcp] = cls.pcp;
    return Status::ok_status();
  }

  Status number_classes() {
    service_.queues[kDefaultQueue].name = kDefault;
    if (options(kDefault).strict == true)
      return error("the default class is strict", "it would starve bulk; expected a weight", options(kDefault).line);
    TL_RETURN_IF_ERROR(take(fabric_.classes.control, options(fabric_.classes.control.name).strict.value_or(true)));
    bool first = true;
    for (const fabric::TrafficClass& cls : fabric_.classes.data) {
      TL_RETURN_IF_ERROR(take(cls, options(cls.name).strict.value_or(first)));
      first = false;
    }
    return Status::ok_status();
  }

  Status number_cnp() {
    const std::uint8_t dscp = fabric_.qos.cnp_dscp;
    const std::uint8_t owner = service_.queue_of_dscp[dscp];
    std::optional<std::uint8_t> pcp = fabric_.qos.cnp_pcp;
    if (owner != kDefaultQueue && pcp != owner)
      return error(fmt::format("CNP has DSCP {} of class '{}'", dscp, service_.queues[owner].name),
                   fmt::format("give CNP a DSCP of its own, or share the class's queue by 'pcp: {}'", owner),
                   options(kCnp).line);
    for (int number = fabric_.classes.data.front().pcp; !pcp && number > 0; --number) {
      if (service_.queues[static_cast<std::size_t>(number)].name.empty()) pcp = static_cast<std::uint8_t>(number);
    }
    if (!pcp)
      return error("no PCP is free for CNP below the most urgent class",
                   "free one, or say which queue it shares: 'cnp: {pcp: ...}'", options(kCnp).line);
    if (*pcp == kDefaultQueue)
      return error("CNP has PCP 0", "it would wait with traffic of others; expected 1 to 7", options(kCnp).line);
    service_.cnp_queue = *pcp;
    service_.queue_of_dscp[dscp] = *pcp;
    Queue& queue = service_.queues[*pcp];
    if (queue.lossless)
      return error(fmt::format("CNP shares the queue of the lossless class '{}'", queue.name),
                   "a congested class would stop its own relief; give it another 'pcp'", options(kCnp).line);
    if (!queue.name.empty()) return Status::ok_status();
    queue = {.name = std::string(kCnp), .strict = options(kCnp).strict.value_or(true), .dscp = dscp};
    service_.queue_of_pcp[*pcp] = *pcp;
    return Status::ok_status();
  }

  bool is_data(const std::string& name) const {
    return std::any_of(fabric_.classes.data.begin(), fabric_.classes.data.end(),
                       [&](const fabric::TrafficClass& cls) { return cls.name == name; });
  }

  Status shape() {
    const auto strict_data =
        static_cast<unsigned>(std::count_if(service_.queues.begin(), service_.queues.end(),
                                            [&](const Queue& queue) { return queue.strict && is_data(queue.name); }));
    for (Queue& queue : service_.queues) {
      if (queue.name.empty()) continue;
      const fabric::ClassService& own = options(queue.name);
      queue.shaper = own.shaper_percent.value_or(0);
      if (queue.strict && own.weight_percent)
        return error(fmt::format("class '{}' is strict and has a weight", queue.name), "expected one of them",
                     own.line);
      if (!queue.strict || queue.shaper != 0) continue;
      queue.shaper = is_data(queue.name)  ? std::max(1u, kDataShaper / strict_data)
                     : queue.name == kCnp ? kCnpShaper
                                          : kControlShaper;
    }
    return Status::ok_status();
  }

  unsigned strict_share() const {
    unsigned share = 0;
    for (const Queue& queue : service_.queues) share += queue.strict ? queue.shaper : 0;
    return share;
  }

  // Strict above weighted; among strict ones the rank, control first.
  Status check_order() {
    const Queue* below = nullptr;  // the highest weighted class
    for (const Queue& queue : service_.queues) {
      if (!queue.name.empty() && !queue.strict) below = &queue;
    }
    for (const Queue& queue : service_.queues) {
      if (queue.strict && &queue < below)
        return error(fmt::format("the strict class '{}' has PCP {}, the weighted class '{}' has {}", queue.name,
                                 &queue - service_.queues.data(), below->name, below - service_.queues.data()),
                     "switches serve higher numbers first; give strict classes the highest PCPs");
    }
    std::uint8_t above = fabric_.classes.control.pcp;
    const std::string* name = &fabric_.classes.control.name;
    for (const fabric::TrafficClass& cls : fabric_.classes.data) {
      if (!service_.queues[cls.pcp].strict) continue;
      if (cls.pcp > above)
        return error(
            fmt::format("the strict class '{}' has PCP {}, '{}' before it has {}", cls.name, cls.pcp, *name, above),
            "switches serve higher numbers first; order the PCPs as the ranks");
      above = cls.pcp;
      name = &cls.name;
    }
    for (Queue& queue : service_.queues) queue.strict |= queue.name.empty() && &queue > below;
    return Status::ok_status();
  }

  // Weights of weighted queues sum up to 100: 1 for each that carries nothing, the rest in proportion.
  Status weigh() {
    unsigned given = 0, unsaid = 0, unused = 0;
    for (const Queue& queue : service_.queues) {
      if (queue.strict) continue;
      if (queue.name.empty())
        ++unused;
      else if (options(queue.name).weight_percent)
        given += *options(queue.name).weight_percent;
      else if (queue.name == kDefault)
        given += kDefaultWeight;
      else
        ++unsaid;
    }
    if (given + unsaid > 100) return error(fmt::format("weights of {} %", given), "expected at most 100 % together");
    unsigned total = 0;
    for (Queue& queue : service_.queues) {
      if (queue.strict || queue.name.empty()) continue;
      const unsigned own = queue.name == kDefault ? kDefaultWeight : unsaid == 0 ? 1 : (100 - given) / unsaid;
      queue.weight = options(queue.name).weight_percent.value_or(own);
      total += queue.weight;
    }
    unsigned left = 100;
    Queue* largest = nullptr;
    for (Queue& queue : service_.queues) {
      if (queue.strict) continue;
      queue.weight = queue.name.empty() ? 1 : std::max(1u, queue.weight * (100 - unused) / total);
      left -= queue.weight;
      if (largest == nullptr || queue.weight > largest->weight) largest = &queue;
    }
    largest->weight += left;
    return check_guarantee();
  }

  Status check_guarantee() {
    const unsigned strict = strict_share();
    const unsigned weight = service_.queues[kDefaultQueue].weight;
    if (strict < 100 && weight * (100 - strict) >= kLeastGuarantee * 100) return Status::ok_status();
    return error(
        fmt::format("default traffic is guaranteed {:.1f} % of a port: {} % of the {} % that strict classes "
                    "leave",
                    strict < 100 ? weight * (100 - strict) / 100.0 : 0.0, weight, strict < 100 ? 100 - strict : 0),
        fmt::format("expected at least {} %: smaller shapers of strict classes, or a larger weight of default",
                    kLeastGuarantee));
  }

  Status check_times() {
    const fabric::Qos& qos = fabric_.qos;
    const Duration wait = longest_wait(service_);
    const auto ms = [](Duration d) { return fmt::format("{:g} ms", to_seconds(d) * 1e3); };
    if (qos.watchdog.detection.value < 2 * qos.watchdog.poll.value)
      return error(fmt::format("the watchdog detects after {} and polls every {}", ms(qos.watchdog.detection),
                               ms(qos.watchdog.poll)),
                   "expected a detection of at least two polls");
    if (qos.watchdog.restoration < qos.watchdog.detection)
      return error(fmt::format("the watchdog restores after {} and detects after {}", ms(qos.watchdog.restoration),
                               ms(qos.watchdog.detection)),
                   "expected a restoration that takes as long as the detection");
    for (const auto& [name, time] : {std::pair("the watchdog's detection", qos.watchdog.detection),
                                     std::pair("'head_of_line_lifetime'", qos.head_of_line_lifetime)}) {
      if (time <= wait)
        return error(fmt::format("{} is {}", name, ms(time)),
                     fmt::format("a weighted class may wait {}; expected more", ms(wait)));
    }
    const Duration stall = wait + qos.watchdog.detection + qos.watchdog.restoration;
    const auto check = [&](Duration budget, const std::string& whose, int line) -> Status {
      if (budget > stall) return Status::ok_status();
      return error(fmt::format("'retry_budget' of {} is {}", whose, ms(budget)),
                   fmt::format("a lossless class may stand still for {}: {} waiting, {} until the watchdog acts, {} "
                               "until it restores; expected more",
                               ms(stall), ms(wait), ms(qos.watchdog.detection), ms(qos.watchdog.restoration)),
                   line);
    };
    TL_RETURN_IF_ERROR(check(qos.retry_budget, "the fabric", 0));
    for (const fabric::Host& host : fabric_.hosts) {
      if (host.retry_budget)
        TL_RETURN_IF_ERROR(check(*host.retry_budget, fmt::format("host '{}'", host.name), host.line));
    }
    return Status::ok_status();
  }

  const fabric::Fabric& fabric_;
  Service service_;
};

}  // namespace

Result<Service> service_of(const fabric::Fabric& fabric) {
  return Policy(fabric).make();
}

Duration longest_wait(const Service& service) {
  unsigned share = 0, least = 100;
  for (const Queue& queue : service.queues) {
    share += queue.strict ? queue.shaper : 0;
    if (!queue.strict) least = std::min(least, std::max(queue.weight, 1u));
  }
  // A round serves every weighted queue its quantum; the smallest weight makes the longest round of bursts.
  const double left = std::max(1.0, 100.0 - share) / 100.0;
  const double bursts = to_seconds(kBurst) * share / 100.0 / left;
  const double round = to_seconds(kBurst) * 100.0 / least / 100.0 / left;
  return Duration(std::llround((bursts + round) * 1e9));
}

}  // namespace tensorlane::switches
