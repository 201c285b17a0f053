// Has the kernel turn away connections to a listening socket by their address, before they cost a descriptor.
#pragma once

#include <cstddef>
#include <set>
#include <string>

#include "common/base/status.h"
#include "daemon/control/strangers.h"

namespace tensorlane::control {

// Addresses as the kernel's filter, whose length is limited, knows them: one by one where they are at most kMaxKnown,
// else by the longest prefixes that are. Then a neighbour of theirs counts as one of them.
inline constexpr std::size_t kMaxKnown = 256;
struct KnownAddresses {
  std::set<AddressBytes> prefixes;  // kMaxKnown at most; what is behind `bits` is 0
  unsigned bits = 128;
};
KnownAddresses known_addresses(const std::set<AddressBytes>& addresses);

// The listening socket takes no new connection from an address that is shut out; with `all_but_known`, from none but
// `known`. Their SYN is dropped, so who stands outside comes again by itself a second later. Connections that are there
// are not touched. Empty `shut`: everybody may connect. Errors: kUnavailable (the kernel takes no filter).
Status filter_connections(int listener, const Strangers::Shut& shut, const KnownAddresses& known);

// The address at the other end of a connected socket, and its text. False: it is not connected any more, or not by IP.
bool peer_address(int socket, AddressBytes* address);
std::string address_text(const AddressBytes& address);
// Whom a line of the log blames: the address, or the network of 64 bits of one of IPv6, in which anybody has many.
std::string network_text(const AddressBytes& address);
// Of "10.0.0.1" or "fd00::1"; false for anything else.
bool parse_address(const std::string& text, AddressBytes* address);

}  // namespace tensorlane::control
