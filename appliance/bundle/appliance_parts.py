"""What makes a bundle install a whole appliance: images with their bills of materials and licences, compose files, and
install.sh."""
