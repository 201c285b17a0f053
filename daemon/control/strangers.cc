#include "daemon/control/strangers.h"

#include <algorithm>

namespace tensorlane::control {

Strangers::Strangers(std::size_t fabric_hosts)
    : per_address_(std::clamp(2 * fabric_hosts, kLeastPerAddress, kMostPerAddress)) {}

void Strangers::connected(int descriptor, const AddressBytes& address) {
  if (const auto stale = address_of_.find(descriptor); stale != address_of_.end()) forget(stale);
  address_of_[descriptor] = address;
  const std::size_t count = ++of_address_[address];
  if (count >= per_address_ && shut_.addresses.size() < kMaxShut) shut_.addresses.insert(address);
  shut_.all_but_known = shut_.all_but_known || address_of_.size() >= kTotal;
}

void Strangers::proved(int descriptor) {
  if (const auto connection = address_of_.find(descriptor); connection != address_of_.end()) forget(connection);
}

bool Strangers::gone(int descriptor) {
  const auto connection = address_of_.find(descriptor);
  if (connection == address_of_.end()) return false;
  forget(connection);
  return true;
}

void Strangers::forget(std::map<int, AddressBytes>::iterator connection) {
  const auto of_address = of_address_.find(connection->second);
  if (--of_address->second <= per_address_ / 2) shut_.addresses.erase(connection->second);
  if (of_address->second == 0) of_address_.erase(of_address);
  address_of_.erase(connection);
  shut_.all_but_known = shut_.all_but_known && address_of_.size() > kTotal / 2;
}

}  // namespace tensorlane::control
