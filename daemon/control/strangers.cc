#include "daemon/control/strangers.h"

#include <algorithm>

namespace tensorlane::control {

Strangers::Strangers(std::size_t fabric_hosts)
    : per_address_(std::clamp(2 * fabric_hosts, kLeastPerAddress, kMostPerAddress)), total_(kTotal + fabric_hosts) {}

void Strangers::connected(int descriptor, const AddressBytes& address) {
  if (const auto stale = address_of_.find(descriptor); stale != address_of_.end()) forget(stale, false);
  address_of_[descriptor] = address;
  Connections& there = of_address_[address];
  ++there.all;
  if (there.strange() >= per_address_ && shut_.addresses.size() < kMaxShut) shut_.addresses.insert(address);
  shut_.all_but_known = shut_.all_but_known || count() >= total_;
}

void Strangers::vouched(const AddressBytes& address) {
  const auto there = of_address_.find(address);
  if (there == of_address_.end() || there->second.strange() == 0) return;
  ++there->second.vouched;
  ++vouched_;
  open_again(address, there->second);
}

void Strangers::proved(int descriptor) {
  if (const auto connection = address_of_.find(descriptor); connection != address_of_.end()) forget(connection, true);
}

bool Strangers::gone(int descriptor) {
  const auto connection = address_of_.find(descriptor);
  if (connection == address_of_.end()) return false;
  forget(connection, false);
  return true;
}

void Strangers::forget(std::map<int, AddressBytes>::iterator connection, bool was_host) {
  const AddressBytes address = connection->second;
  const auto there = of_address_.find(address);
  Connections& left = there->second;
  address_of_.erase(connection);
  --left.all;
  if (left.vouched > 0 && (was_host || left.vouched > left.all)) {
    --left.vouched;
    --vouched_;
  }
  open_again(address, left);
  if (left.all == 0) of_address_.erase(there);
}

void Strangers::open_again(const AddressBytes& address, const Connections& left) {
  if (left.strange() <= per_address_ / 2) shut_.addresses.erase(address);
  shut_.all_but_known = shut_.all_but_known && count() > total_ / 2;
}

}  // namespace tensorlane::control
