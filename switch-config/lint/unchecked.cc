#include "switch-config/lint/unchecked.h"

#include <algorithm>

#include <fmt/format.h>

namespace tensorlane::lint {
namespace {

bool any_buffer(const Port& port, Buffer::Kind kind) {
  return std::any_of(port.buffers.begin(), port.buffers.end(), [&](const Buffer& b) { return b.kind == kind; });
}

bool has_lossless_buffer(const Port& port) {
  return any_buffer(port, Buffer::Kind::kLossless) || any_buffer(port, Buffer::Kind::kComputed);
}

bool has_buffers(const Port& port) {
  return has_lossless_buffer(port) || any_buffer(port, Buffer::Kind::kLossy);
}

bool is_lossless(const Port& port) {
  return port.pfc.value_or(0) != 0 || has_lossless_buffer(port);
}

template <typename Says>
bool any_queue(const Port& port, Says says) {
  return std::any_of(port.queues.begin(), port.queues.end(), says);
}

class Unchecked {
 public:
  Unchecked(const Device& device, findings::Report& report) : device_(device), report_(report) {}

  void say() {
    if (device_.ports.empty()) {
      add("L1 to L8", "it says nothing of a port that a rule could look at");
      return;
    }
    if (!device_.lists_ports)
      add("L9", "PORT has no rows: ports are those that other tables name, whether they exist or not");
    const bool pfc = any([](const Port& port) { return port.pfc.has_value(); });
    if (!pfc) add(lossless_ ? "L3 and L8" : "L2, L3 and L5 to L8", "it does not say for which priorities PFC is on");
    say_of_classes();
    if (lossless_) say_of_lossless();
  }

 private:
  template <typename Is>
  bool any(Is is) const {
    return std::any_of(device_.ports.begin(), device_.ports.end(), is);
  }
  template <typename Is>
  bool any_lossless(Is is) const {
    return any([&](const Port& port) { return is_lossless(port) && is(port); });
  }

  void add(const char* rules, std::string reason) {
    report_.unchecked.push_back({device_.name, rules, std::move(reason)});
  }

  void say_of_classes() {
    if (!any([](const Port& port) { return port.dscp_to_class != nullptr || port.pcp_to_class != nullptr; }))
      add("L1 and L13", "no port says which class a DSCP or PCP becomes");
    if (!any([](const Port& port) {
          return any_queue(port, [](const Queue& queue) { return queue.scheduling.has_value(); });
        }))
      add("L4", "no queue says how it is served");
  }

  void say_of_lossless() {
    if (!device_.is_host && !any_lossless([](const Port& port) {
          return any_queue(port, [](const Queue& queue) { return queue.ecn != nullptr || !queue.place.empty(); });
        }))
      add("L5", "no queue of a lossless port says whether it marks");
    if (device_.language == "sonic") say_of_buffers();
    if (!any_lossless([](const Port& port) { return port.mtu.has_value(); }))
      add("L7", "no lossless port says its MTU");
  }

  void say_of_buffers() {
    if (!any_lossless(has_buffers)) {
      add("L3 and L6", "no priority group of a lossless port has a buffer here");
      return;
    }
    if (!any_lossless(
            [](const Port& port) { return any_queue(port, [](const Queue& q) { return !q.buffer_place.empty(); }); }))
      add("L3", "no queue of a lossless port has an egress buffer here");
    const auto is_given = [](const Port& port) { return any_buffer(port, Buffer::Kind::kLossless); };
    const auto count = std::count_if(device_.ports.begin(), device_.ports.end(), [&](const Port& port) {
      return is_given(port) && (!port.speed || !port.cable_metres);
    });
    if (count > 0)
      add("L6", fmt::format("headroom of {} ports depends on a speed or cable length that is not given", count));
  }

  const Device& device_;
  findings::Report& report_;
  const bool lossless_ = any(is_lossless);
};

}  // namespace

void say_unchecked(const Device& device, findings::Report& report) {
  Unchecked(device, report).say();
}

}  // namespace tensorlane::lint
