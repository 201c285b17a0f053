// Has the kernel turn away connections to a listening socket by their address, before they cost a descriptor.
#pragma once

#include <vector>

#include "common/base/status.h"
#include "daemon/control/strangers.h"

namespace tensorlane::control {

// The listening socket takes no new connection from an address that is shut out; with `all_but_known`, from none but
// `known` (the first kMaxKnown count). Their SYN is dropped, so who stands outside comes again by itself a second
// later. Connections that are there are not touched. Empty `shut`: everybody may connect. Errors: kUnavailable (the
// kernel takes no filter).
inline constexpr std::size_t kMaxKnown = 256;
Status filter_connections(int listener, const Strangers::Shut& shut, const std::vector<AddressBytes>& known);

// The address at the other end of a connected socket, and its text. False: it is not connected any more, or not by IP.
bool peer_address(int socket, AddressBytes* address);
std::string address_text(const AddressBytes& address);
// Of "10.0.0.1" or "fd00::1"; false for anything else.
bool parse_address(const std::string& text, AddressBytes* address);

}  // namespace tensorlane::control
