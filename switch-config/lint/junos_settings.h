// Inside the Junos parser: what the statements of a configuration say, by the names that they give to things.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "switch-config/lint/text.h"

namespace tensorlane::lint::junos {

struct ForwardingClass {
  std::string place;
  std::optional<std::uint8_t> queue;
  bool lossless = false;
  std::optional<std::uint8_t> priority;
};

struct CodePoint {
  std::uint8_t point;
  std::string cls, place;
};

struct Pause {  // a congestion-notification-profile
  std::string place;
  std::vector<std::pair<std::uint8_t, std::string>> dscps, pcps;
  Map* to_queue = nullptr;
  std::optional<double> metres;
  std::string metres_place;
  std::string watchdog_place;
  Duration poll = milliseconds(100), recovery = milliseconds(200);
  std::uint64_t detection = 2;  // polls
};

struct Scheduler {
  std::string place;
  std::optional<Scheduling> scheduling;
  std::optional<Shaper> shaper;
  bool marks = false;
  std::string drop_profile, drop_place, ecn_place;
};

// A name, and where it is said.
struct Reference {
  std::string name, place;
};

struct Bound {  // an interface of class-of-service, which may be a pattern: "et-*"
  std::string place, pause, pause_place, dscp, pcp, classifier_place;
  std::vector<Reference> scheduler_maps, profiles;  // profiles: of sets of forwarding classes, each with a map
};

struct Served {  // a line of a scheduler map
  std::string cls, scheduler, place;
};

struct Physical {
  std::optional<std::uint64_t> mtu;
  std::string place, mtu_place, flow_control;
  std::optional<BitsPerSecond> speed;
  bool disabled = false, member = false;  // member: of an aggregated interface, which has its QoS
};

struct Settings {
  std::map<std::string, ForwardingClass> classes;
  std::map<std::string, std::vector<CodePoint>> dscp_classifiers, pcp_classifiers;
  std::map<std::string, Pause> pauses;
  std::map<std::string, Ecn*> drop_profiles;
  std::map<std::string, std::pair<std::size_t, std::size_t>> drop_points;  // how many fill levels and probabilities
  std::map<std::string, Scheduler> schedulers;
  std::map<std::string, std::vector<Served>> scheduler_maps;
  std::map<std::string, std::string> profile_maps;  // the scheduler maps of traffic-control-profiles
  std::map<std::string, Bound> bound;
  std::map<std::string, Physical> interfaces;
  std::map<std::string, std::uint8_t> dscp_aliases, pcp_aliases;
  std::string no_headroom;  // which gives the lossless classes no headroom
};

// Adds the device's ports, and says what does not fit together.
void add_ports(Settings& settings, Context& context);

}  // namespace tensorlane::lint::junos
