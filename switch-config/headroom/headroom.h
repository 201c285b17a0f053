// How many bytes a lossless queue may still receive after it has asked its peer to stop: the headroom. Pure functions.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "common/base/status.h"
#include "common/base/units.h"

namespace tensorlane::headroom {

enum class Asic { kSpectrum1, kSpectrum2, kSpectrum3, kSpectrum4, kSpectrum5 };
// Two generations of buffer_headroom_mellanox.lua of SONiC: releases since 2025 have the current one.
enum class Formula { kCurrent, kOlder };

// "spectrum1" to "spectrum5", "current" and "older". InvalidArgument that names the known ones.
Result<Asic> parse_asic(std::string_view text);
Result<Formula> parse_formula(std::string_view text);

struct PortParameters {
  BitsPerSecond speed{};
  double cable_metres = 0;  // 0 to 100 km
  Bytes port_mtu{};         // 64 to 65535
  Bytes lossless_mtu{};     // the largest frame of lossless traffic, 64 to port_mtu
};

struct Parameters {
  Asic asic = Asic::kSpectrum4;
  Formula formula = Formula::kCurrent;
  PortParameters port;
  unsigned small_packet_percent = 100;  // of the lossless packets, how many have 64 bytes; 0 to 100
  bool shared_headroom = false;         // over_subscribe_ratio or the pool's xoff is not 0
  std::optional<unsigned> lanes;        // 1 to 8; unset: default_lanes
  unsigned gearbox_nanoseconds = 0;     // 400 on SN3800
};

// As a BUFFER_PROFILE of SONiC has them.
struct Headroom {
  Bytes xoff;  // received after the pause frame was decided on
  Bytes xon;   // below this fill the peer may send again
  Bytes size;  // reserved for the priority group: xon, and without a shared pool xoff, too

  bool operator==(const Headroom&) const = default;
};

// The lanes of a port at the speed that a lane has on this ASIC: 400G are 8 lanes on Spectrum-3, 4 on Spectrum-4.
unsigned default_lanes(Asic asic, BitsPerSecond speed);

// The dynamic buffer model of NVIDIA's SONiC (sonic-swss, cfgmgr/buffer_headroom_mellanox.lua), which reproduces the
// xoff of the vendor's lookup tables of SN2700, SN3700, SN4700 (older), SN5600 and SN5640 (current). Differences that
// are known: the vendor's 800G rows of SN5600 have a size 1024 smaller, and published scripts of the older formula
// subtract 1024 from the xon of 8-lane ports; both err to the safe side here.
// InvalidArgument, where = the parameter's name, for one outside of the range that is stated above.
Result<Headroom> nvidia_headroom(const Parameters& parameters);

// What any switch needs, from bit times of IEEE 802.3 and the length of the cable alone. An estimate, no vendor's
// number: `lower` is what a correct configuration of a Broadcom chip does not go below (all known lookup rows keep it).
// `upper` is meant to be enough on any: it adds two interface delays at their standard's bound, above 100G in
// proportion to the speed, and lets all that is in flight be packets of 64 bytes that take a cell of 256 each. It is
// above every row of the vendors' tables that is made for its own speed and length; tables that give the value of a
// longer cable or a faster port, such as 1,136,396 bytes at 400G and 60 m of 7060X6, are above it.
struct Estimate {
  Bytes lower, upper;
};
Result<Estimate> generic_headroom(const PortParameters& port);

// The xoff of a receive buffer in an mlx5 NIC (Linux, mlx5e port_buffer.c), rounded up; speeds below 40G count as 40G.
Result<Bytes> nic_headroom(BitsPerSecond speed, double cable_metres, Bytes mtu);

// Whether a port takes these priority groups: their sizes, what egress mirroring and one lossy group take, and 4096
// must stay below the port's max_headroom (SONiC, buffer_check_headroom_mellanox.lua). Returns the sum.
// ResourceExhausted with the arithmetic.
Result<Bytes> check_port(std::span<const Bytes> sizes, unsigned lanes, Bytes max_headroom);

// Whether headroom and what else is reserved leave at least half of the buffer to be shared. Returns what is left.
// ResourceExhausted with the arithmetic.
Result<Bytes> check_buffer(Bytes buffer, Bytes headroom, Bytes reserved);

}  // namespace tensorlane::headroom
