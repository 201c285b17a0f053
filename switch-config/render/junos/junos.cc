// Juniper Junos (QFX): one tree of statements, written as `set` commands and as XML.
#include <algorithm>
#include <cctype>

#include <fmt/format.h>

#include "switch-config/render/lines.h"
#include "switch-config/render/render.h"

namespace tensorlane::switches {

namespace {

// A statement: its tag, what it is called or its value, and what belongs to it. In XML the name of a list's entry is a
// <name> of its own and a value is text; some tags stand in XML only, and some statements are one line of `set`.
struct Statement {
  enum class Kind { kContainer, kEntry, kValue, kLine };

  Kind kind = Kind::kContainer;
  std::string tag, text;
  bool only_xml = false;
  std::string doubt = {};  // a comment above it
  std::vector<Statement> inner = {};

  Statement& in(const std::string& name) { return find(Kind::kContainer, name, ""); }
  Statement& line(const std::string& name) { return find(Kind::kLine, name, ""); }
  Statement& entry(const std::string& name, const std::string& key) { return find(Kind::kEntry, name, key); }
  Statement& value(const std::string& name, const std::string& content) { return find(Kind::kValue, name, content); }
  Statement& hidden() {
    only_xml = true;
    return *this;
  }

 private:
  // The statement that was made last is used again if it is the same: trees are made in order.
  Statement& find(Kind wanted, const std::string& name, const std::string& content) {
    if (!inner.empty() && inner.back().kind == wanted && inner.back().tag == name && inner.back().text == content)
      return inner.back();
    Statement& made = inner.emplace_back();
    made.kind = wanted;
    made.tag = name;
    made.text = content;
    return made;
  }
};

void write_set(const Statement& at, const std::string& path, std::string& text) {
  std::string here = path;
  for (const std::string& word : {at.only_xml ? std::string() : at.tag, at.text})
    here += word.empty() ? "" : " " + word;
  if (!at.doubt.empty()) text += fmt::format("# {}\n", at.doubt);
  if (at.kind == Statement::Kind::kLine) {
    for (const Statement& next : at.inner) here += fmt::format(" {} {}", next.tag, next.text);
    text += here + "\n";
    return;
  }
  if (at.inner.empty()) text += here + "\n";
  for (const Statement& next : at.inner) write_set(next, here, text);
}

// `name_space`: of what is another one than that around it.
void write_xml(const Statement& at, std::size_t depth, std::string& text, const std::string& name_space = {}) {
  const std::string indent(2 * depth, ' ');
  if (!at.doubt.empty()) text += fmt::format("{}<!-- {} -->\n", indent, at.doubt);
  if (at.kind == Statement::Kind::kValue) {
    text += fmt::format("{0}<{1}>{2}</{1}>\n", indent, at.tag, at.text);
    return;
  }
  if (at.kind == Statement::Kind::kContainer && at.inner.empty()) {
    text += fmt::format("{}<{}/>\n", indent, at.tag);
    return;
  }
  text += fmt::format("{}<{}{}>\n", indent, at.tag, name_space.empty() ? "" : fmt::format(" xmlns=\"{}\"", name_space));
  if (at.kind == Statement::Kind::kEntry) text += fmt::format("{}  <name>{}</name>\n", indent, at.text);
  for (const Statement& next : at.inner) write_xml(next, depth + 1, text);
  text += fmt::format("{}</{}>\n", indent, at.tag);
}

// Two hyphens would end a comment of XML.
std::string without_hyphens(std::string text) {
  for (std::size_t at = 0; (at = text.find("--", at)) != text.npos;) text.replace(at, 2, "- -");
  return text;
}

class Junos {
 public:
  explicit Junos(const DeviceQos& device) : device_(device), weights_(used_weights(device)) {}

  Result<std::vector<RenderedFile>> make() {
    TL_RETURN_IF_ERROR(check());
    Statement& cos = root_.in("class-of-service");
    add_classifiers(cos);
    add_classes(cos);
    if (device_.lossless_mask() != 0) add_flow_control(cos);
    add_drop_profiles(cos);
    add_schedulers(cos);
    if (device_.lossless_mask() != 0) add_buffers(cos);
    for (const DevicePort& port : device_.ports) add_binding(cos, port);
    if (has_untrusted(device_)) add_filters();
    for (const DevicePort& port : device_.ports) add_interface(port);
    const std::string about = "QoS of the fabric's classes for Juniper Junos (QFX), from fabric.yaml";
    std::string set = heading(device_, "#", about);
    std::string xml = "<!--\n" + without_hyphens(heading(device_, " ", about)) +
                      "  Namespaces are those of Juniper's YANG models, Junos 17.4 and later.\n-->\n";
    xml += fmt::format("<configuration xmlns=\"{}\">\n", name_space("root"));
    for (const Statement& next : root_.inner) {
      write_set(next, "set", set);
      write_xml(next, 1, xml, name_space(next.tag));
    }
    return std::vector<RenderedFile>{{.name = "junos.set", .text = std::move(set)},
                                     {.name = "junos.xml", .text = xml + "</configuration>\n"}};
  }

 private:
  static std::string upper(std::string text) {
    std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::toupper(c); });
    return text;
  }

  Status check() const {
    TL_RETURN_IF_ERROR(check_ports(device_, "Junos", {"et-#/#/#", "xe-#/#/#", "ge-#/#/#"}));
    TL_RETURN_IF_ERROR(check_mtu(device_, "Junos", 9216));
    const auto error = [&](std::string what, std::string fix) {
      return Status(Code::kInvalidArgument, std::move(what), fmt::format("device '{}'", device_.name), std::move(fix));
    };
    std::size_t strict = 0;
    for (const Queue& queue : device_.queues) strict += queue.strict && !queue.name.empty();
    if (strict > 1 && upper(device_.platform.name).starts_with("QFX5100"))
      return error(fmt::format("{} strict classes on a QFX5100", strict), "its ports have one strict-high queue");
    for (const PortKind& kind : device_.kinds) {
      const bool marks = std::any_of(kind.ecn.begin(), kind.ecn.end(), [](const auto& ecn) { return ecn.has_value(); });
      if (marks && !device_.platform.buffer)
        return error("ECN thresholds without the size of the packet memory",
                     "Junos has them as percent of it; give the platform's 'buffer'");
    }
    return Status::ok_status();
  }

  bool is_used(std::size_t queue) const { return !device_.queues[queue].name.empty(); }
  // By number: classes may be called anything.
  static std::string fc(std::size_t queue) { return queue == 0 ? "best-effort" : fmt::format("fabric-{}", queue); }
  static std::string bits(std::size_t number, unsigned width) { return fmt::format("{:0{}b}", number, width); }
  static std::string scheduler(std::size_t queue, std::size_t kind) { return fmt::format("FABRIC-{}-{}", queue, kind); }

  void add_classifiers(Statement& cos) {
    Statement& own = cos.in("classifiers").entry("dscp", "FABRIC-DSCP");
    own.doubt = "In doubt: whether this model classifies IPv6 by it, too, or by the same again as dscp-ipv6.";
    for (std::size_t q = 0; q < kQueues; ++q) add_points(own, q, dscps_of(device_, q), 6);
    Statement& pcp = cos.in("classifiers").entry("ieee-802.1", "FABRIC-PCP");
    pcp.doubt = "Not bound: a routed port has one classifier, by DSCP. For a trunk, bind this one in its place.";
    for (std::size_t q = 0; q < kQueues; ++q) add_points(pcp, q, pcps_of(device_, q), 3);
    if (!has_untrusted(device_)) return;
    std::vector<std::size_t> all(kDscps);
    for (std::size_t i = 0; i < kDscps; ++i) all[i] = i;
    add_points(cos.in("classifiers").entry("dscp", "FABRIC-EDGE"), 0, all, 6);
  }

  static void add_points(Statement& classifier, std::size_t queue, const std::vector<std::size_t>& points,
                         unsigned width) {
    if (points.empty()) return;
    Statement& low = classifier.entry("forwarding-class", fc(queue)).entry("loss-priority", "low");
    for (const std::size_t point : points) low.value("code-points", bits(point, width));
  }

  void add_classes(Statement& cos) {
    for (std::size_t q = 0; q < kQueues; ++q) {
      if (!is_used(q)) continue;
      Statement& own = cos.in("forwarding-classes").entry("class", fc(q));
      own.value("queue-num", std::to_string(q));
      if (!device_.queues[q].lossless) continue;
      own.in("no-loss");
      own.value("pfc-priority", std::to_string(q));
    }
  }

  static std::string flow_control(std::size_t kind) { return fmt::format("FABRIC-{}", kind); }

  void add_flow_control(Statement& cos) {
    const fabric::Watchdog& watchdog = device_.watchdog;
    const std::int64_t poll = std::max<std::int64_t>(watchdog.poll.value, 1);
    for (std::size_t i = 0; i < device_.kinds.size(); ++i) {
      const PortKind& kind = device_.kinds[i];
      if (lossless_at(device_, kind) == 0) continue;
      Statement& profile = cos.entry("congestion-notification-profile", flow_control(i));
      Statement& pfc = profile.in("pfc-watchdog");
      pfc.value("poll-interval", std::to_string(milliseconds_of(watchdog.poll)));
      pfc.value("detection", std::to_string((watchdog.detection.value + poll - 1) / poll));
      pfc.value("recovery", std::to_string(milliseconds_of(watchdog.restoration)));
      pfc.value("watchdog-action", watchdog.action == fabric::Watchdog::Action::kDrop ? "drop" : "forward");
      Statement& input = profile.in("input");
      input.value("cable-length", fmt::format("{:.0f}", std::max(1.0, kind.cable_metres)));
      for (const std::size_t q : lossless_queues(device_)) {
        for (const std::size_t dscp : dscps_of(device_, q))
          input.in("dscp").entry("code-point", bits(dscp, 6)).in("pfc");
      }
      for (const std::size_t q : lossless_queues(device_))
        profile.in("output")
            .in("ieee-802.1")
            .entry("code-point", bits(q, 3))
            .value("flow-control-queue", std::to_string(q));
    }
  }

  // Junos counts in percent of what a queue may hold; taken as the packet memory.
  void add_drop_profiles(Statement& cos) {
    for (std::size_t i = 0; i < device_.kinds.size(); ++i) {
      for (std::size_t q = 0; q < kQueues; ++q) {
        if (!device_.kinds[i].ecn[q]) continue;
        const fabric::EcnThresholds& ecn = *device_.kinds[i].ecn[q];
        const std::uint64_t buffer = device_.platform.buffer->value;
        const auto percent = [&](Bytes bytes) {
          return std::clamp<std::uint64_t>((bytes.value * 100 + buffer / 2) / buffer, 1, 99);
        };
        const std::uint64_t least = percent(ecn.kmin), most = std::max(percent(ecn.kmax), least + 1);
        Statement& profile = cos.entry("drop-profiles", scheduler(q, i));
        profile.doubt =
            fmt::format("In doubt: {} and {} bytes as percent of {} bytes; what a queue may hold differs by platform.",
                        ecn.kmin.value, ecn.kmax.value, buffer);
        Statement& interpolate = profile.in("interpolate");
        for (const std::uint64_t level : {least, most}) interpolate.value("fill-level", std::to_string(level));
        for (const unsigned chance : {0u, static_cast<unsigned>(ecn.pmax_percent)})
          interpolate.value("drop-probability", std::to_string(chance));
      }
    }
  }

  void add_schedulers(Statement& cos) {
    for (std::size_t i = 0; i < device_.kinds.size(); ++i) {
      for (std::size_t q = kQueues; q-- > 0;) {
        if (is_used(q)) add_scheduler(cos.entry("schedulers", scheduler(q, i)), q, i);
      }
    }
    const std::string name = upper(device_.platform.name);
    const bool several = name.starts_with("QFX5200") || name.starts_with("QFX10");
    for (std::size_t i = 0; i < device_.kinds.size(); ++i) {
      Statement& map = cos.entry("scheduler-maps", flow_control(i));
      if (!several) map.doubt = "In doubt: whether this model has several strict-high queues; QFX5200 and QFX10000 do.";
      for (std::size_t q = kQueues; q-- > 0;) {
        if (is_used(q)) map.entry("forwarding-class", fc(q)).value("scheduler", scheduler(q, i));
      }
    }
  }

  // Among strict-high queues the higher number is served first.
  void add_scheduler(Statement& own, std::size_t q, std::size_t kind) const {
    const Queue& queue = device_.queues[q];
    if (!queue.strict) own.in("transmit-rate").value("percent", std::to_string(weights_[q]));
    if (queue.shaper != 0) own.in("shaping-rate").value("percent", std::to_string(queue.shaper));
    own.value("priority", queue.strict ? "strict-high" : "low");
    if (!device_.kinds[kind].ecn[q]) return;
    Statement& map = own.line("drop-profile-map");
    map.value("loss-priority", "any");
    map.value("protocol", "any");
    map.value("drop-profile", scheduler(q, kind));
    own.in("explicit-congestion-notification");
  }

  bool is(std::initializer_list<const char*> models) const {
    const std::string name = upper(device_.platform.name);
    return std::any_of(models.begin(), models.end(), [&](const char* model) { return name.starts_with(model); });
  }

  bool is_evolved() const {
    return upper(device_.release).ends_with("EVO") || is({"QFX5130", "QFX5220", "QFX5230", "QFX5240", "QFX5700"});
  }

  // Of a part of the configuration in Juniper's YANG models, which differ by family.
  std::string name_space(const std::string& part) const {
    return fmt::format("http://yang.juniper.net/{}/conf/{}", is_evolved() ? "junos" : "junos-qfx", part);
  }

  void add_buffers(Statement& cos) {
    struct Share {
      const char *side, *partition, *percent;
    };
    Statement& buffer = cos.in("shared-buffer");
    if (is_evolved() && !is({"QFX5130", "QFX5240"}))
      buffer.doubt = "In doubt: whether this model of Junos Evolved has partitions, as QFX5130 and QFX5240 do.";
    for (const char* side : {"ingress", "egress"}) {
      Statement& own = buffer.in(side);
      own.value("percent", "100");
      for (const Share& share : {Share{"ingress", "lossless", "80"}, Share{"ingress", "lossless-headroom", "10"},
                                 Share{"ingress", "lossy", "10"}, Share{"egress", "lossless", "80"},
                                 Share{"egress", "lossy", "10"}, Share{"egress", "multicast", "10"}}) {
        if (share.side == std::string_view(side))
          own.entry("buffer-partition", share.partition).value("percent", share.percent);
      }
    }
  }

  void add_binding(Statement& cos, const DevicePort& port) {
    const PortKind& kind = device_.kinds[port.kind];
    Statement& own = cos.in("interfaces").entry("interface", port.name).hidden();
    if (lossless_at(device_, kind) != 0) own.value("congestion-notification-profile", flow_control(port.kind));
    own.value("scheduler-map", flow_control(port.kind));
    own.entry("unit", "0").in("classifiers").entry("dscp", kind.trusted ? "FABRIC-DSCP" : "FABRIC-EDGE");
  }

  // What strangers mark as one of our classes would be trusted by the next switch: it is dropped.
  void add_filters() {
    Statement& family = root_.in("firewall").in("family");
    for (const auto& [name, match] : {std::pair("inet", "dscp"), std::pair("inet6", "traffic-class")}) {
      Statement& filter = family.in(name).entry("filter", "FABRIC-EDGE");
      Statement& ours = filter.entry("term", "CLASSES");
      for (const std::size_t dscp : class_dscps(device_)) ours.in("from").value(match, std::to_string(dscp));
      ours.in("then").in("discard");
      filter.entry("term", "OTHERS").in("then").in("accept");
    }
  }

  void add_interface(const DevicePort& port) {
    const PortKind& kind = device_.kinds[port.kind];
    Statement& own = root_.in("interfaces").entry("interface", port.name).hidden();
    own.value("mtu", std::to_string(kind.mtu));
    if (kind.trusted) return;
    Statement& family = own.entry("unit", "0").in("family");
    family.doubt = "In doubt: whether the port is routed; one of a bridge has the filter in family ethernet-switching.";
    for (const char* name : {"inet", "inet6"})
      family.in(name).in("filter").in("input").value("filter-name", "FABRIC-EDGE").hidden();
  }

  const DeviceQos& device_;
  std::array<unsigned, kQueues> weights_;
  Statement root_;
};

}  // namespace

Result<std::vector<RenderedFile>> render_junos(const DeviceQos& device) {
  return Junos(device).make();
}

}  // namespace tensorlane::switches
