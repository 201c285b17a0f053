// Connections to the control port that have not shown the key of a host yet: how many there may be, and from where no
// more are let in. Pure: no socket, no clock.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>

namespace tensorlane::control {

// An IP address as 16 bytes; one of IPv4 in its mapped form (::ffff:10.0.0.1).
using AddressBytes = std::array<std::uint8_t, 16>;

// One thread.
class Strangers {
 public:
  // From one address, where it is not the fabric's size that asks for more: a host that connects is a stranger until
  // its first message, and several daemons may share an address.
  static constexpr std::size_t kLeastPerAddress = 32, kMostPerAddress = 128;
  // Of all addresses together, beside one for each host: when a job begins, all its hosts may come at once.
  static constexpr std::size_t kTotal = 256;
  // Addresses that are shut out at a time; one more counts towards the total only.
  static constexpr std::size_t kMaxShut = 32;

  explicit Strangers(std::size_t fabric_hosts);

  // A connection that this descriptor stands for until gone().
  void connected(int descriptor, const AddressBytes& address);
  // Some connection from there has shown the key of a host: one of them counts no more from now on, whichever it is.
  void vouched(const AddressBytes& address);
  // It belongs to a host of the fabric. Others are not known here any more.
  void proved(int descriptor);
  // False: it had proved itself, or was never known.
  bool gone(int descriptor);

  // Whom to let in from now on. An address is shut out at its limit and let in again at half of it.
  struct Shut {
    std::set<AddressBytes> addresses;
    bool all_but_known = false;  // too many of all addresses: only the fabric's own addresses are let in
    bool operator==(const Shut&) const = default;
  };
  const Shut& shut() const { return shut_; }
  // Those that count.
  std::size_t count() const { return address_of_.size() - vouched_; }
  std::size_t per_address() const { return per_address_; }
  std::size_t total() const { return total_; }

 private:
  // Of one address.
  struct Connections {
    std::size_t all = 0, vouched = 0;
    std::size_t strange() const { return all - vouched; }
  };

  void forget(std::map<int, AddressBytes>::iterator connection, bool was_host);
  void open_again(const AddressBytes& address, const Connections& left);

  const std::size_t per_address_, total_;
  std::map<int, AddressBytes> address_of_;
  std::map<AddressBytes, Connections> of_address_;
  std::size_t vouched_ = 0;  // of all addresses
  Shut shut_;
};

}  // namespace tensorlane::control
