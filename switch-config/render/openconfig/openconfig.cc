// OpenConfig: queues, classifiers by DSCP, schedulers and ECN. It has no words for PFC, headroom, the watchdog or PCP.
#include <algorithm>
#include <array>
#include <set>

#include <fmt/format.h>

#include "common/json/json.h"
#include "switch-config/render/render.h"

namespace tensorlane::switches {

namespace {

using Oc = nlohmann::json;

constexpr std::array<std::pair<const char*, const char*>, 2> kFamilies{std::pair("ipv4", "IPV4"),
                                                                       std::pair("ipv6", "IPV6")};

// Names by number: classes may be called anything.
std::string queue_name(std::size_t queue) {
  return fmt::format("TC{}", queue);
}
std::string policy_name(const PortKind& kind) {
  return fmt::format("FABRIC-{}", kind.speed.value / 1'000'000);
}
std::string profile_name(std::size_t queue, const PortKind& kind) {
  return fmt::format("ECN-TC{}-{}-{}", queue, kind.speed.value / 1'000'000, kind.mtu);
}

// {"KEY": name, "config": {"KEY": name, ...}}
Oc entry(const char* key, const Oc& name, Oc config = Oc::object()) {
  config[key] = name;
  return {{key, name}, {"config", std::move(config)}};
}

class OpenConfig {
 public:
  explicit OpenConfig(const DeviceQos& device) : device_(device) {}

  Oc make() {
    Oc qos;
    for (std::size_t q = 0; q < kQueues; ++q) {
      if (device_.queues[q].name.empty()) continue;
      qos["queues"]["queue"].push_back(entry("name", queue_name(q), {{"queue-id", q}}));
      qos["forwarding-groups"]["forwarding-group"].push_back(
          entry("name", "FG-" + queue_name(q), {{"output-queue", queue_name(q)}}));
    }
    for (const auto& [family, type] : kFamilies) {
      qos["classifiers"]["classifier"].push_back(classifier(family, type));
      if (has_untrusted()) qos["classifiers"]["classifier"].push_back(others(family, type));
    }
    add_kinds(qos);
    Oc interfaces = Oc::array(), bindings = Oc::array();
    for (const DevicePort& port : device_.ports) {
      interfaces.push_back(
          entry("name", port.name, {{"type", "iana-if-type:ethernetCsmacd"}, {"mtu", device_.kinds[port.kind].mtu}}));
      bindings.push_back(binding(port));
    }
    qos["interfaces"]["interface"] = std::move(bindings);
    return {{"openconfig-interfaces:interfaces", {{"interface", std::move(interfaces)}}},
            {"openconfig-qos:qos", std::move(qos)}};
  }

 private:
  bool has_untrusted() const {
    return std::any_of(device_.kinds.begin(), device_.kinds.end(), [](const PortKind& kind) { return !kind.trusted; });
  }

  // One term for each class.
  Oc classifier(const char* family, const char* type) const {
    std::array<Oc, kQueues> dscps;
    for (std::size_t dscp = 0; dscp < kDscps; ++dscp) dscps[device_.queue_of_dscp[dscp]].push_back(dscp);
    Oc terms = Oc::array();
    for (std::size_t q = 0; q < kQueues; ++q) {
      if (!dscps[q].empty()) terms.push_back(term(queue_name(q), family, dscps[q], q));
    }
    return named("FABRIC", type, std::move(terms));
  }

  // Strangers' packets are all default, and those with a mark of ours lose it.
  Oc others(const char* family, const char* type) const {
    Oc ours, theirs;
    for (std::size_t dscp = 0; dscp < kDscps; ++dscp) (device_.is_class_dscp(dscp) ? ours : theirs).push_back(dscp);
    Oc marked = term("CLASSES", family, ours, 0);
    marked["actions"]["remark"]["config"]["set-dscp"] = 0;
    return named("OTHERS", type, {std::move(marked), term("OTHERS", family, theirs, 0)});
  }

  static Oc term(const std::string& id, const char* family, const Oc& dscps, std::size_t queue) {
    Oc result = entry("id", id);
    result["conditions"][family]["config"]["dscp-set"] = dscps;
    result["actions"]["config"]["target-group"] = "FG-" + queue_name(queue);
    return result;
  }

  static Oc named(const char* name, const char* type, Oc terms) {
    Oc result = entry("name", fmt::format("{}-{}", name, type), {{"type", type}});
    result["terms"]["term"] = std::move(terms);
    return result;
  }

  // One scheduler policy for each speed, as shapers are rates; one ECN profile for each class, speed and MTU.
  void add_kinds(Oc& qos) const {
    std::set<std::string> written;
    for (const PortKind& kind : device_.kinds) {
      for (std::size_t q = 0; q < kQueues; ++q) {
        if (!kind.ecn[q] || !written.insert(profile_name(q, kind)).second) continue;
        Oc profile = entry("name", profile_name(q, kind));
        profile["wred"]["uniform"]["config"] = {{"min-threshold", std::to_string(kind.ecn[q]->kmin.value)},
                                                {"max-threshold", std::to_string(kind.ecn[q]->kmax.value)},
                                                {"max-drop-probability-percent", kind.ecn[q]->pmax_percent},
                                                {"enable-ecn", true},
                                                {"drop", false}};
        qos["queue-management-profiles"]["queue-management-profile"].push_back(std::move(profile));
      }
      if (!written.insert(policy_name(kind)).second) continue;
      Oc policy = entry("name", policy_name(kind));
      policy["schedulers"]["scheduler"] = schedulers(kind);
      qos["scheduler-policies"]["scheduler-policy"].push_back(std::move(policy));
    }
  }

  // The lowest sequence is served first: strict queues from the highest number, then the weighted ones together.
  Oc schedulers(const PortKind& kind) const {
    Oc list = Oc::array(), weighted = Oc::array();
    for (std::size_t q = kQueues; q-- > 0;) {
      const Queue& queue = device_.queues[q];
      if (queue.name.empty()) continue;
      Oc input = entry("id", queue_name(q), {{"input-type", "QUEUE"}, {"queue", queue_name(q)}});
      if (!queue.strict) {
        input["config"]["weight"] = std::to_string(queue.weight);
        weighted.push_back(std::move(input));
        continue;
      }
      Oc scheduler = entry("sequence", list.size(), {{"priority", "STRICT"}});
      scheduler["inputs"]["input"].push_back(std::move(input));
      scheduler["output"]["config"]["output-type"] = "INTERFACE";
      if (queue.shaper != 0) {
        scheduler["config"]["type"] = "openconfig-qos-types:ONE_RATE_TWO_COLOR";
        scheduler["one-rate-two-color"]["config"]["cir"] = std::to_string(kind.speed.value / 100 * queue.shaper);
      }
      list.push_back(std::move(scheduler));
    }
    Oc last = entry("sequence", list.size());
    last["inputs"]["input"] = std::move(weighted);
    last["output"]["config"]["output-type"] = "INTERFACE";
    list.push_back(std::move(last));
    return list;
  }

  Oc binding(const DevicePort& port) const {
    const PortKind& kind = device_.kinds[port.kind];
    Oc result = entry("interface-id", port.name);
    result["interface-ref"]["config"]["interface"] = port.name;
    for (const auto& [family, type] : kFamilies) {
      result["input"]["classifiers"]["classifier"].push_back(
          entry("type", type, {{"name", fmt::format("{}-{}", kind.trusted ? "FABRIC" : "OTHERS", type)}}));
    }
    result["output"]["scheduler-policy"]["config"]["name"] = policy_name(kind);
    for (std::size_t q = 0; q < kQueues; ++q) {
      if (device_.queues[q].name.empty()) continue;
      Oc queue = entry("name", queue_name(q));
      if (kind.ecn[q]) queue["config"]["queue-management-profile"] = profile_name(q, kind);
      result["output"]["queues"]["queue"].push_back(std::move(queue));
    }
    return result;
  }

  const DeviceQos& device_;
};

}  // namespace

Result<std::vector<RenderedFile>> render_openconfig(const DeviceQos& device) {
  return std::vector<RenderedFile>{{.name = "openconfig.json", .text = OpenConfig(device).make().dump(1) + "\n"}};
}

}  // namespace tensorlane::switches
